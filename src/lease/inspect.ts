import { LeaseholdError } from '../errors.ts'
import { quoteIdentifier } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { type LeaseTable, tableName } from './table.ts'

export interface Column {
  readonly name: string
  /** As PostgreSQL writes it, ready for a cast: `bigint`, `bpchar`, `timestamp with time zone`, `"My Type"`. */
  readonly type: string
  /** A length or precision that the column is declared with, as in `varchar(20)` or `timestamptz(0)`. */
  readonly modifier: number | null
  readonly notNull: boolean
}

export interface TableIndex {
  readonly name: string
  readonly unique: boolean
  /** Of the table itself; the others are of its partitions. */
  readonly own: boolean
  /** The predicate of a partial index, as PostgreSQL writes it. */
  readonly predicate: string | undefined
  /** `undefined` stands for an expression. */
  readonly columns: readonly (string | undefined)[]
  /**
   * PostgreSQL does not use it before all transactions have ended that are older than it: it was built in a transaction
   * that had changed rows of the table, as a migration does.
   */
  readonly waits: boolean
}

/** What the catalog says of the real table. */
export interface TableShape {
  readonly partitioned: boolean
  /** The rows are on several nodes, by their bucket, and the schema has the table `citus_buckets` with one row for each bucket. */
  readonly distributed: boolean
  readonly columns: ReadonlyMap<string, Column>
  readonly indexes: readonly TableIndex[]
}

export type Inspection =
  | { readonly found: 'table'; readonly shape: TableShape }
  | { readonly found: 'nothing' }
  /** `kind` in words: `a view`. */
  | { readonly found: 'otherKind'; readonly kind: string }

const OTHER_KINDS: Readonly<Record<string, string>> = {
  v: 'a view',
  m: 'a materialized view',
  f: 'a foreign table',
  S: 'a sequence',
  i: 'an index',
  I: 'an index',
  c: 'a composite type',
}

const FIND_RELATION = `
select c.oid::text as oid, c.relkind::text as kind,
       exists (select from pg_class as b where b.relnamespace = n.oid and b.relname = 'citus_buckets') as distributed
from pg_class as c
join pg_namespace as n on n.oid = c.relnamespace
where n.nspname = $1 and c.relname = $2`

const COLUMNS = `
select a.attname as name, a.attnotnull as "notNull",
       -- With -1 a type that has a length is named so that a cast to it cuts nothing off: bpchar, not character.
       format_type(a.atttypid, -1) as type,
       case
         when a.atttypmod < 0 then null
         when a.atttypid = 'varchar'::regtype then a.atttypmod - 4
         else a.atttypmod
       end as modifier
from pg_attribute as a
where a.attrelid = $1::oid and a.attnum > 0 and not a.attisdropped
order by a.attnum`

const INDEXES = `
select ic.relname as name, i.indisunique as unique, i.indrelid = $1::oid as own, i.indcheckxmin as waits, pg_get_expr(i.indpred, i.indrelid) as predicate,
       (select json_agg(a.attname order by k.n)
        from unnest(i.indkey::int2[]) with ordinality as k (attnum, n)
        left join pg_attribute as a on a.attrelid = i.indrelid and a.attnum = k.attnum and k.attnum > 0
        where k.n <= i.indnkeyatts) as columns
from pg_index as i
join pg_class as ic on ic.oid = i.indexrelid
where i.indrelid in (select $1::oid union select relid from pg_partition_tree($1::oid)) and i.indisvalid and i.indislive
order by ic.relname`

/** Ordinary and partitioned tables take row locks and can carry the lease; views and others cannot. */
const LEASABLE = new Set(['r', 'p'])

interface IndexRow {
  readonly name: string
  readonly unique: boolean
  readonly own: boolean
  readonly predicate: string | null
  readonly columns: (string | null)[]
  readonly waits: boolean
}

export async function inspectTable(
  db: Queryable,
  table: Pick<LeaseTable, 'schema' | 'name'>,
): Promise<Inspection> {
  const relation = await db.query<{ oid: string; kind: string; distributed: boolean }>({
    text: FIND_RELATION,
    values: [table.schema, table.name],
  })
  const found = relation.rows[0]
  if (found === undefined) return { found: 'nothing' }
  if (!LEASABLE.has(found.kind))
    return { found: 'otherKind', kind: OTHER_KINDS[found.kind] ?? 'something else' }

  const columns = await db.query<Column>({ text: COLUMNS, values: [found.oid] })
  const indexes = await db.query<IndexRow>({
    text: INDEXES,
    values: [found.oid],
  })
  return {
    found: 'table',
    shape: {
      partitioned: found.kind === 'p',
      distributed: found.distributed,
      columns: new Map(
        columns.rows.map((column) => [column.name, { ...column, type: plainlyQuoted(column.type) }]),
      ),
      indexes: indexes.rows.map((index) => ({
        name: index.name,
        unique: index.unique,
        own: index.own,
        predicate: index.predicate === null ? undefined : plainlyQuoted(index.predicate),
        columns: index.columns.map((name) => name ?? undefined),
        waits: index.waits,
      })),
    },
  }
}

/** As PostgreSQL prints it without `quote_all_identifiers`, which a role or a database may have set. */
function plainlyQuoted(printed: string): string {
  return printed.replaceAll(/'(?:[^']|'')*'|"((?:[^"]|"")*)"/g, (token, name?: string) =>
    name === undefined ? token : quoteIdentifier(name.replaceAll('""', '"')),
  )
}

/** One thing in which the declaration and the real table disagree, and the statement or edit that mends it. */
export interface Mismatch {
  readonly what: string
  readonly remedy: string
  readonly cause?: unknown
}

/** The refusal of a table, with everything that does not fit. */
export function schemaMismatch(table: LeaseTable, mismatches: readonly Mismatch[]): LeaseholdError {
  const subject = `The lease table ${tableName(table)} does not fit:`
  const [only, ...others] = mismatches
  if (only === undefined || others.length > 0) {
    const lines = mismatches.map(({ what, remedy }) => `\n  - ${what}. ${remedy}`)
    const cause = mismatches.find((each) => each.cause !== undefined)?.cause
    return new LeaseholdError('LEASE_TABLE_MISMATCH', `${subject}${lines.join('')}`, { cause })
  }
  const { what, remedy, cause } = only
  return new LeaseholdError('LEASE_TABLE_MISMATCH', `${subject} ${what}.`, { remedy, cause })
}
