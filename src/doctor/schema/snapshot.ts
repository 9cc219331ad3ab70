/**
 * The snapshot of the schema after all migrations of this release, `migrations/schema.json`. It is written by
 * `npm run schema`, from a database that was just migrated, and does not depend on the version of PostgreSQL.
 */
import { readSchemaSnapshot } from '../../package-files.ts'
import { distribute } from '../../postgres/citus.ts'
import type { Database } from '../../postgres/database.ts'
import { quoteIdentifier, quoteLiteral } from '../../postgres/identifiers.ts'
import { migrate, readMigrations } from '../../postgres/migrate.ts'
import { type Definitions, definitionsOf, readCatalog } from './catalog.ts'

export interface Snapshot {
  /** The last migration it contains. */
  readonly version: number
  readonly definitions: Definitions
  /** What is different where there are several buckets, as a JSON merge patch (RFC 7396). */
  readonly buckets: object
  /** What is different where Citus distributes the tables. */
  readonly citus: object
  /** Other definitions of functions, as databases have them that were migrated on an older PostgreSQL. */
  readonly alternatives: Readonly<Record<string, string>>
}

/** What stands in a definition for the name of the schema, and for the number of buckets. */
const SCHEMA = '@schema@'
const BUCKETS = '@buckets@'

/** `leasehold migrate --buckets` replaces these two. */
export const BUCKET_COUNTS: readonly string[] = ['bucket_count()', 'previous_bucket_count()']

export async function readSnapshot(): Promise<Snapshot> {
  // It is a file of this package, so its shape is known.
  return (await readSchemaSnapshot()) as Snapshot
}

export interface SchemaVariant {
  readonly schema: string
  readonly buckets: number
  readonly distributed: boolean
}

/** The definitions that a schema of this name and kind must have. */
export function expectedDefinitions(snapshot: Snapshot, variant: SchemaVariant): Definitions {
  const patch = variant.distributed ? snapshot.citus : variant.buckets > 1 ? snapshot.buckets : {}
  // A patch of definitions makes definitions.
  return named(mergePatch(snapshot.definitions, patch), variant) as Definitions
}

/** Replaces what stands for the name of the schema and the number of buckets. */
export function named(value: unknown, { schema, buckets }: Omit<SchemaVariant, 'distributed'>): unknown {
  return mapTexts(value, (text) =>
    text
      .replaceAll(`'${SCHEMA}'`, () => quoteLiteral(schema).trim())
      .replaceAll(SCHEMA, () => quoteIdentifier(schema))
      .replaceAll(BUCKETS, String(buckets)),
  )
}

/** The number of buckets, as the text of a function returns it. */
const RETURNED_COUNT = /\bRETURN \d+$/

/** Makes the snapshot, in schemas of its own, which are dropped afterwards. The role may create schemas and roles. */
export async function makeSnapshot(db: Database): Promise<Snapshot> {
  const plain = 'leasehold_snapshot_plain'
  const bucketed = 'leasehold_snapshot_buckets'
  const distributed = 'leasehold_snapshot_citus'
  const schemas = [plain, bucketed, distributed]
  const drop = schemas.map((schema) => `drop schema if exists ${schema} cascade`).join(';')
  try {
    await db.query({ text: drop })
    const { version } = await migrate(db, { schema: plain })
    await migrate(db, { schema: bucketed, buckets: 4 })
    await migrate(db, { schema: distributed, buckets: 4 })
    await pretendToDistribute(db, distributed)
    const definitions = await read(db, plain)
    return {
      version,
      definitions,
      buckets: patchBetween(definitions, await read(db, bucketed)),
      citus: patchBetween(definitions, await read(db, distributed)),
      alternatives: await olderEventIds(db, plain),
    }
  } finally {
    await db.query({ text: drop })
  }
}

/** The functions of Citus do not change the definitions of tables and functions, so here they do nothing. */
async function pretendToDistribute(db: Database, schema: string): Promise<void> {
  const functions = [
    'create_distributed_table(regclass, text, colocate_with text)',
    'create_reference_table(regclass)',
    'create_distributed_function(regprocedure)',
  ]
  for (const each of functions)
    await db.query({ text: `create function ${schema}.${each} returns void language sql as ''` })
  await db.transaction(async (tx) => distribute(tx, schema))
  for (const each of functions)
    await db.query({ text: `drop function ${schema}.${each.replace('colocate_with ', '')}` })
}

/** What new_event_id() is before PostgreSQL 18, which has uuidv7(): the other branch of the migration. */
async function olderEventIds(db: Database, schema: string): Promise<Record<string, string>> {
  const files = await readMigrations()
  const outbox = files.find(({ name }) => name === 'outbox')?.text ?? ''
  const [, older] = /\n {2}else\n {4}execute \$create\$([\s\S]+?)\$create\$/.exec(outbox) ?? []
  if (older === undefined) throw new Error('002_outbox.sql has no function for PostgreSQL before 18')
  await db.transaction(async (tx) => {
    await tx.query({ text: `set local search_path to ${schema}, pg_temp` })
    await tx.query({ text: older.replace('create function', 'create or replace function') })
  })
  const { functions } = await read(db, schema)
  return { 'new_event_id()': functions['new_event_id()'] ?? '' }
}

async function read(db: Database, schema: string): Promise<Definitions> {
  const definitions = await db.transaction(async (tx) => definitionsOf(await readCatalog(tx, schema)))
  const unnamed = mapTexts(definitions, (text) => text.replaceAll(schema, SCHEMA)) as Definitions // The same shape.
  const counts = BUCKET_COUNTS.map((name) => [
    name,
    unnamed.functions[name]?.replace(RETURNED_COUNT, `RETURN ${BUCKETS}`) ?? '',
  ])
  return { ...unnamed, functions: { ...unnamed.functions, ...Object.fromEntries(counts) } }
}

type Json = Readonly<Record<string, unknown>>

function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** RFC 7396: null removes a member. */
export function mergePatch(target: unknown, patch: unknown): unknown {
  if (!isObject(patch)) return patch
  const merged: Record<string, unknown> = isObject(target) ? { ...target } : {}
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) delete merged[name]
    else merged[name] = mergePatch(merged[name], value)
  }
  return merged
}

/** The patch that makes `after` of `before`. Neither contains null. */
export function patchBetween(before: object, after: object): object {
  const [from, to] = [before as Json, after as Json] // Objects, member by member.
  const patch: Record<string, unknown> = {}
  for (const name of new Set([...Object.keys(from), ...Object.keys(to)])) {
    const [old, now] = [from[name], to[name]]
    if (now === undefined) patch[name] = null
    else if (isObject(old) && isObject(now)) {
      const inner = patchBetween(old, now)
      if (Object.keys(inner).length > 0) patch[name] = inner
    } else if (JSON.stringify(old) !== JSON.stringify(now)) patch[name] = now
  }
  return patch
}

/** Applies a change to every text, names of members included. */
function mapTexts(value: unknown, change: (text: string) => string): unknown {
  if (typeof value === 'string') return change(value)
  if (Array.isArray(value)) return value.map((each) => mapTexts(each, change))
  if (!isObject(value)) return value
  return Object.fromEntries(
    Object.entries(value).map(([name, each]) => [change(name), mapTexts(each, change)]),
  )
}
