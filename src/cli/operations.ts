/** Operations as commands: arguments and flags from the input, tables and facts from the answer. */
import type { Command } from 'commander'
import { z } from 'zod'
import { descriptionOf, type FieldWords, jsonTypeOf, wordsOf } from '../operations/fields.ts'
import { fromText, type InputProblem, problemsIn } from '../operations/input.ts'
import { onlyReads, type Operation, type OperationContext, pathFields } from '../operations/operation.ts'
import { DATABASE_SETTINGS, type Define, type Run, UsageError } from './command.ts'
import { withTablesOf } from './database.ts'
import { flagName, isSet, JSON_FLAG, PRINCIPAL_FLAG, principalOf } from './flags.ts'
import {
  columns,
  type Fact,
  factLines,
  grouped,
  momentFact,
  printable,
  printableJson,
  relative,
} from './output.ts'

/** Adds the commands of these operations to their group, or to the program if a command has one word. */
export function addOperations(operations: readonly Operation[]): (parent: Command, define: Define) => void {
  return (parent, define) => {
    for (const operation of operations) addOperation(parent, define, operation)
  }
}

function addOperation(parent: Command, define: Define, operation: Operation): void {
  const { command, summary } = operation
  const usage = [
    command.split(' ').at(-1),
    ...positionalOf(operation).map((name) => argumentOf(name, schemaOf(operation.input, name))),
  ].join(' ')
  define(
    parent,
    usage,
    lowerFirst(summary),
    DATABASE_SETTINGS,
    async (run) => runOperation(operation, run),
    (added) => {
      for (const [name, schema] of fieldsOf(operation)) {
        if (!positionalOf(operation).includes(name)) added.option(optionOf(name, schema), helpOf(schema))
      }
      if (!onlyReads(operation)) added.option(...PRINCIPAL_FLAG)
      added.option(...JSON_FLAG)
    },
  )
}

type Field = readonly [name: string, schema: z.ZodType]

function fieldsOf({ input }: Operation): readonly Field[] {
  // Every field of this project is a schema of zod's, not of its core.
  return Object.entries(input.shape) as [string, z.ZodType][]
}

function positionalOf(operation: Operation): readonly string[] {
  return operation.positional ?? pathFields(operation)
}

function flagOf(name: string, schema: z.ZodType): string {
  return flagName(wordsOf(schema).flag ?? name)
}

function argumentOf(name: string, schema: z.ZodType): string {
  return `<${wordsOf(schema).placeholder ?? name}>`
}

/** `--limit <n>`; a flag that is true when it is given has no value. */
function optionOf(name: string, schema: z.ZodType): string {
  const flag = flagOf(name, schema)
  return jsonTypeOf(schema) instanceof z.ZodBoolean ? flag : `${flag} <${placeholderOf(schema)}>`
}

function placeholderOf(schema: z.ZodType): string {
  const { placeholder, relativeTo } = wordsOf(schema)
  if (placeholder !== undefined) return placeholder
  if (relativeTo !== undefined) return 'time'
  return jsonTypeOf(schema) instanceof z.ZodNumber ? 'n' : 'text'
}

const RELATIVE_TIMES = {
  past: 'how long ago it was: 90s, 15m, 2h, 7d',
  future: 'how long it is until then: 12h, 90d',
} as const

const RELATIVE_EXAMPLES = { past: '2h for two hours ago', future: '90d for 90 days from now' } as const

/** The description of the field as the help has it: one phrase, with what it accepts and what holds without it. */
function helpOf(schema: z.ZodType): string {
  const { relativeTo, absent } = wordsOf(schema)
  const type = jsonTypeOf(schema)
  const usual = schema instanceof z.ZodDefault ? schema.def.defaultValue : absent
  return [
    lowerFirst(descriptionOf(schema) ?? '').replace(/\.$/, ''),
    ...(type instanceof z.ZodEnum ? [`: ${type.options.join(', ')}`] : []),
    ...(relativeTo === undefined ? [] : [`: 2026-03-01T12:00:00Z, or ${RELATIVE_EXAMPLES[relativeTo]}`]),
    ...(typeof usual === 'string' || typeof usual === 'number' ? [` (default: ${usual})`] : []),
    ...(schema.safeParse(undefined).success ? [] : ['; required']),
  ].join('')
}

function lowerFirst(text: string): string {
  return `${text.charAt(0).toLowerCase()}${text.slice(1)}`
}

async function runOperation(operation: Operation, run: Run): Promise<number> {
  const now = new Date()
  // A read is not recorded, and may filter by a principal.
  const principal = onlyReads(operation) ? '' : principalOf(run)
  const given = inputOf(operation, run, now)
  // Before the database is asked.
  checkedInput(operation, given)
  const neededRole = operation.databaseRole ?? (onlyReads(operation) ? undefined : 'operator')
  const answer = await withTablesOf(operation.resource.part ?? 'worker registry')(
    run,
    async (db, schema) => {
      const context = { db, schema, principal }
      return operation.kind === 'list'
        ? readFullPage(operation, context, given)
        : operation.run(context, checkedInput(operation, given))
    },
    neededRole,
  )
  run.print(
    `${isSet(run.flags, 'json') ? printableJson(answer) : textOf(operation, given, answer, run, now)}\n`,
  )
  return 0
}

/** What the command line gives, as the JSON that the schema of the operation accepts. */
function inputOf(operation: Operation, { args, flags }: Run, now: Date): Readonly<Record<string, unknown>> {
  const positional = positionalOf(operation)
  const values = fieldsOf(operation).flatMap(([name, schema]) => {
    const at = positional.indexOf(name)
    const given = at === -1 ? flags[camelCase(flagOf(name, schema))] : args[at]
    if (given === true) return [[name, true] as const]
    return typeof given === 'string' ? [[name, fromText(schema, given, now)] as const] : []
  })
  return Object.fromEntries(values)
}

/** `--expires-at` → `expiresAt`, as commander names it. */
function camelCase(flag: string): string {
  return flag.slice(2).replaceAll(/-(\w)/g, (_, letter: string) => letter.toUpperCase())
}

function checkedInput(operation: Operation, given: Readonly<Record<string, unknown>>) {
  const parsed = operation.input.safeParse(given)
  if (parsed.success) return parsed.data
  const problems = problemsIn(parsed.error, given).map((problem) => explained(operation, problem))
  throw new UsageError(`${problems.join('; ')}.`)
}

function explained(operation: Operation, { path: [name = ''], is = 'unknown', rule }: InputProblem): string {
  const schema = fieldsOf(operation).find(([each]) => each === name)?.[1]
  if (schema === undefined) return `<${name}> is ${is}: ${rule}`
  if (positionalOf(operation).includes(name)) return `${argumentOf(name, schema)} is ${is}: ${rule}`
  const { relativeTo } = wordsOf(schema)
  const orRelative = relativeTo === undefined ? '' : `, or ${RELATIVE_TIMES[relativeTo]}`
  return `${flagOf(name, schema)} is ${is}: ${rule}${orRelative}`
}

interface List {
  readonly items: readonly unknown[]
  /** Undefined or null: there are no more. */
  readonly next?: string | null | undefined
  /** Of a list that has no pages: it was cut, or not everything was examined. */
  readonly more?: boolean
  readonly partial?: boolean
}

/** A list in one answer. A page of a search may be short although there is a next one: it is filled. */
async function readFullPage(
  operation: Operation,
  context: OperationContext,
  given: Readonly<Record<string, unknown>>,
): Promise<List> {
  const ask = async (more: object): Promise<List> =>
    // The output of every list, as its declaration says.
    (await operation.run(context, checkedInput(operation, { ...given, ...more }))) as List
  let page = await ask({})
  const { limit = page.items.length } = checkedInput(operation, given)
  while (typeof page.next === 'string' && page.items.length < Number(limit)) {
    const more = await ask({ cursor: page.next, limit: Number(limit) - page.items.length })
    page = { items: [...page.items, ...more.items], next: more.next }
  }
  return page
}

function textOf(
  operation: Operation,
  given: Readonly<Record<string, unknown>>,
  answer: unknown,
  { terminal }: Run,
  now: Date,
): string {
  const { resource, kind, secrets = [] } = operation
  if (kind === 'list') return listText(operation, given, Object(answer), terminal.width, now)
  if (operation.done !== undefined) return printable(operation.done(answer))
  // An item has the fields of its resource.
  const item: Readonly<Record<string, unknown>> = Object(answer)
  if (secrets.length > 0) return secrets.map((name) => String(item[name])).join('\n')
  return factLines(factsOf(resource.item, item, now))
}

function listText(
  { resource: { rows, item, columns: names, none } }: Operation,
  given: Readonly<Record<string, unknown>>,
  { items, next, more, partial }: List,
  width: number | undefined,
  now: Date,
): string {
  if (items.length === 0)
    return Object.keys(given).some((name) => name !== 'limit') ? `No such ${rows}.` : none
  const headings = names.map((name) => titleOf(name, schemaOf(item, name)).toUpperCase())
  const cells = items.map((each) =>
    names.map((name) => cellText(schemaOf(item, name), name, Object(each), now) ?? ''),
  )
  return [
    columns([headings, ...cells], width),
    ...(typeof next === 'string' ? [`There are more: --before ${next} shows the next ones.`] : []),
    ...(more === true || partial === true ? ['There are more: --limit <n> shows more of them.'] : []),
  ].join('\n')
}

function factsOf(schema: z.ZodObject, item: Readonly<Record<string, unknown>>, now: Date): readonly Fact[] {
  const fields = Object.keys(schema.shape).map((name) => [name, schemaOf(schema, name)] as const)
  const totals = new Set(fields.map(([, field]) => wordsOf(field).outOf))
  return fields
    .filter(([name]) => !totals.has(name))
    .map(([name, field]) => {
      const value = item[name]
      const text = value instanceof Date ? momentFact(value, now) : cellText(field, name, item, now)
      return [titleOf(name, field), text]
    })
}

/** `createdBy` → `Created by`, unless the field has a title. */
function titleOf(name: string, schema: z.ZodType): string {
  const words = name.replaceAll(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`)
  return wordsOf(schema).title ?? `${words.charAt(0).toUpperCase()}${words.slice(1)}`
}

/** The value of a field, as a person reads it in a table. Undefined: there is none. */
function cellText(
  schema: z.ZodType,
  name: string,
  item: Readonly<Record<string, unknown>>,
  now: Date,
): string | undefined {
  const { absent, member } = wordsOf(schema)
  const value = item[name]
  if (value === null || value === undefined) return absent
  if (value instanceof Date) return relative(value, now)
  if (typeof value === 'string') return value
  if (typeof value === 'number') return numberText(value, wordsOf(schema), item)
  if (typeof value === 'boolean') return value ? 'yes' : 'no'
  const members: Readonly<Record<string, unknown>> = Object(value)
  if (member !== undefined) return typeof members[member] === 'string' ? members[member] : undefined
  return Object.keys(members).length === 0 ? undefined : printableJson(value, 0)
}

function numberText(
  value: number,
  { outOf, unit }: FieldWords,
  item: Readonly<Record<string, unknown>>,
): string {
  const total = outOf === undefined ? undefined : item[outOf]
  return [
    grouped(value),
    ...(typeof total === 'number' ? [`of ${grouped(total)}`] : []),
    ...(unit === undefined ? [] : [unit]),
  ].join(' ')
}

function schemaOf({ shape }: z.ZodObject, name: string): z.ZodType {
  // As in `fieldsOf`.
  return shape[name] as z.ZodType
}
