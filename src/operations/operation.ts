/** What an operation is, and what a resource is. HTTP routes, OpenAPI, commands and their help follow from the declarations. */
import type { z } from 'zod'
import type { Database } from '../postgres/database.ts'
import type { RoleKind } from '../postgres/permissions.ts'
import type { KeyRole } from './roles.ts'

/** What an operation does with its resource; the HTTP method and its status follow from it. */
export type OperationKind = 'list' | 'show' | 'create' | 'remove' | 'do'

/** A kind of thing that can be listed and shown: keys, changes, entries of the audit. */
export interface Resource<Item extends z.ZodObject = z.ZodObject> {
  /** The plural, as sentences have it. */
  readonly rows: string
  /** The group in the OpenAPI document and on the reference page. */
  readonly tag: string
  /** What a schema without its tables lacks, for the error that says so. Default: the worker registry. */
  readonly part?: string
  /** One of them, as it is answered. Its fields are the facts that are shown, in this order. */
  readonly item: Item
  /** The fields that a list shows, in order. */
  readonly columns: readonly string[]
  /** What a person reads while there is none. */
  readonly none: string
}

/** Who asks for an operation, and where it acts. */
export interface OperationContext {
  /** Acts as the caller. Over HTTP everything that does not only read is one transaction. */
  readonly db: Database
  readonly schema: string
  /** Who makes the change, for the audit: a key, or an account. */
  readonly principal: string
}

/** Something that an operator or a program can ask for. */
export interface Operation<Input extends z.ZodObject = z.ZodObject, Output extends z.ZodType = z.ZodType> {
  readonly kind: OperationKind
  readonly resource: Resource
  /** `keys revoke`: how it is called on the command line. */
  readonly command: string
  /** Below the base path: `/keys/{id}`. The names in braces are fields of the input. */
  readonly path: string
  /** The fields that a command takes as arguments, in order. Default: those of the path. */
  readonly positional?: readonly string[]
  /** One line, in the imperative. */
  readonly summary: string
  readonly role: KeyRole
  /** Whether keys that are limited to a tenant may call it. The database limits what they see. Default false. */
  readonly forTenants?: boolean
  /** The database role that it needs, if not that of the caller's role. */
  readonly databaseRole?: RoleKind
  readonly input: Input
  /** What is answered. A list answers `items`; others one item of the resource, or what `done` puts into words. */
  readonly output: Output
  /** Fields of the answer that are shown once. A command prints these alone, so that a script can read them. */
  readonly secrets?: readonly string[]
  /** What a command says when it is done. Default: the item. A method, so that operations of any output are operations. */
  done?(answer: z.output<Output>): string
  run(context: OperationContext, input: z.output<Input>): Promise<z.output<Output>>
}

/** The names of fields, which the types above cannot check: operations of any input are operations. */
type FieldsOf<Schema extends z.ZodObject> = readonly (keyof Schema['shape'] & string)[]

export function operation<Input extends z.ZodObject, Output extends z.ZodType>(
  declared: Operation<Input, Output> & { readonly positional?: FieldsOf<Input> },
): Operation<Input, Output> {
  return declared
}

export function resource<Item extends z.ZodObject>(
  declared: Resource<Item> & { readonly columns: FieldsOf<Item> },
): Resource<Item> {
  return declared
}

/** The names in the braces of a path. */
export function pathFields({ path }: Pick<Operation, 'path'>): readonly string[] {
  return [...path.matchAll(/\{(\w+)\}/g)].map(([, name = '']) => name)
}

/** Whether it changes nothing. */
export function onlyReads({ kind }: Pick<Operation, 'kind'>): boolean {
  return kind === 'list' || kind === 'show'
}
