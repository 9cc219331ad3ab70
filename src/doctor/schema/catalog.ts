/** The schema as the catalogs of PostgreSQL have it, in a form that can be compared with the snapshot of the release. */
import { EMPTY_PATH } from '../../postgres/catalog-path.ts'
import { DEFAULT_ROLE_PREFIX, ROLE_KINDS, type RoleKind } from '../../postgres/permissions.ts'
import type { Queryable } from '../../postgres/queryable.ts'

export interface Column {
  readonly type: string
  readonly default?: string
  readonly notNull?: true
  readonly identity?: 'always' | 'by default'
  /** Where it differs from that of the type. */
  readonly storage?: string
  readonly collation?: string
}

export interface Trigger {
  readonly definition: string
  /** Where it is not the default. */
  readonly enabled?: 'always' | 'replica' | 'disabled'
}

export interface Table {
  readonly options: Readonly<Record<string, string>>
  readonly columns: Readonly<Record<string, Column>>
  readonly constraints: Readonly<Record<string, string>>
  /** Those that are not of a constraint. */
  readonly indexes: Readonly<Record<string, string>>
  readonly triggers: Readonly<Record<string, Trigger>>
}

export interface View {
  readonly options: Readonly<Record<string, string>>
  readonly definition: string
}

/** `select on leasehold.outbox` → []; `select columns on leasehold.outbox` → the columns. */
export type Grants = Readonly<Record<string, readonly string[]>>

/** The definitions of a schema. Names of tables, views, indexes and triggers are not qualified; definitions are. */
export interface Definitions {
  readonly tables: Readonly<Record<string, Table>>
  readonly views: Readonly<Record<string, View>>
  /** By name and types of arguments: `bucket(text)`. */
  readonly functions: Readonly<Record<string, string>>
  readonly grants: Readonly<Partial<Record<RoleKind, Grants>>>
}

/** The definitions, and what else is true of the objects. */
export interface Catalog extends Definitions {
  /** Indexes that PostgreSQL does not use, because their creation failed. */
  readonly invalidIndexes: ReadonlySet<string>
  /** Constraints that rows which are older than they are may break, as `table.name`. */
  readonly unvalidated: ReadonlySet<string>
  /** Triggers of extensions, as `table.name`. */
  readonly triggersOfExtensions: ReadonlySet<string>
  /** The names of the four roles, as far as they exist. */
  readonly roles: Readonly<Partial<Record<RoleKind, string>>>
}

/** Reads everything about one schema. The transaction must not need its search_path afterwards. */
export async function readCatalog(tx: Queryable, schema: string): Promise<Catalog> {
  await tx.query({ text: EMPTY_PATH })
  const ask = async <Row extends object>(text: string, ...more: unknown[]): Promise<Row[]> =>
    (await tx.query<Row>({ text, values: [schema, ...more] })).rows
  const roles = await readRoles(tx)
  const relations = await ask<RelationRow>(RELATIONS)
  const columns = await ask<ColumnRow>(COLUMNS)
  const constraints = await ask<ConstraintRow>(CONSTRAINTS)
  const indexes = await ask<IndexRow>(INDEXES)
  const triggers = await ask<TriggerRow>(TRIGGERS)
  const functions = await ask<FunctionRow>(FUNCTIONS)
  const grants = await ask<GrantRow>(GRANTS, Object.values(roles))
  const of = <Row extends { readonly table: string }>(rows: readonly Row[], table: string): Row[] =>
    rows.filter((row) => row.table === table)
  const tables = relations.filter(({ kind }) => kind === 'table')
  return {
    tables: byName(tables, ({ name, options }) => ({
      options: optionsOf(options),
      columns: byName(of(columns, name), columnOf),
      constraints: byName(of(constraints, name), ({ definition }) =>
        trimmed(definition).replace(/ NOT VALID$/, ''),
      ),
      indexes: byName(of(indexes, name), ({ definition }) => trimmed(definition)),
      triggers: byName(of(triggers, name), triggerOf),
    })),
    views: byName(
      relations.filter(({ kind }) => kind === 'view'),
      ({ options, definition }) => ({ options: optionsOf(options), definition: trimmed(definition ?? '') }),
    ),
    functions: byName(functions, ({ definition }) => trimmed(definition)),
    grants: grantsOf(grants, roles),
    invalidIndexes: new Set(indexes.filter(({ valid }) => !valid).map(({ name }) => name)),
    unvalidated: new Set(
      constraints.filter(({ validated }) => !validated).map(({ table, name }) => `${table}.${name}`),
    ),
    triggersOfExtensions: new Set(
      triggers.filter((trigger) => trigger.of_extension).map(({ table, name }) => `${table}.${name}`),
    ),
    roles,
  }
}

/** Only the definitions, as the snapshot stores them. */
export function definitionsOf({ tables, views, functions, grants }: Catalog): Definitions {
  return { tables, views, functions, grants }
}

interface RelationRow {
  readonly name: string
  readonly kind: 'table' | 'view'
  readonly options: readonly string[] | null
  readonly definition: string | null
}

const IN_SCHEMA = '(select oid from pg_catalog.pg_namespace where nspname = $1)'

const RELATIONS = `
select c.relname as name, case when c.relkind = 'v' then 'view' else 'table' end as kind, c.reloptions as options,
  case when c.relkind = 'v' then pg_get_viewdef(c.oid) end as definition
from pg_class as c
where c.relnamespace = ${IN_SCHEMA} and c.relkind in ('r', 'p', 'v')
order by c.relname`

interface ColumnRow {
  readonly table: string
  readonly name: string
  readonly type: string
  readonly default: string | null
  readonly not_null: boolean
  readonly identity: string
  readonly storage: string | null
  readonly collation: string | null
}

const COLUMNS = `
select c.relname as table, a.attname as name, format_type(a.atttypid, a.atttypmod) as type,
  pg_get_expr(d.adbin, d.adrelid) as default, a.attnotnull as not_null, a.attidentity::text as identity,
  case when a.attstorage <> t.typstorage
    then case a.attstorage when 'p' then 'plain' when 'm' then 'main' when 'e' then 'external' else 'extended' end end as storage,
  case when a.attcollation <> t.typcollation
    then (select format('%I.%I', n.nspname, o.collname)
      from pg_collation as o join pg_namespace as n on n.oid = o.collnamespace where o.oid = a.attcollation) end as collation
from pg_class as c
join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
join pg_type as t on t.oid = a.atttypid
left join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
where c.relnamespace = ${IN_SCHEMA} and c.relkind in ('r', 'p')
order by c.relname, a.attnum`

function columnOf(row: ColumnRow): Column {
  return {
    type: row.type,
    ...(row.default === null ? {} : { default: row.default }),
    ...(row.not_null ? { notNull: true } : {}),
    ...(row.identity === '' ? {} : { identity: row.identity === 'a' ? 'always' : 'by default' }),
    ...(row.storage === null ? {} : { storage: row.storage }),
    ...(row.collation === null ? {} : { collation: row.collation }),
  }
}

interface ConstraintRow {
  readonly table: string
  readonly name: string
  readonly definition: string
  readonly validated: boolean
}

/** Since PostgreSQL 18 NOT NULL is a constraint as well (n); here it belongs to its column. */
const CONSTRAINTS = `
select c.relname as table, k.conname as name, pg_get_constraintdef(k.oid) as definition, k.convalidated as validated
from pg_constraint as k join pg_class as c on c.oid = k.conrelid
where c.relnamespace = ${IN_SCHEMA} and c.relkind in ('r', 'p') and k.contype not in ('n', 't')
order by c.relname, k.conname`

interface IndexRow {
  readonly table: string
  readonly name: string
  readonly definition: string
  readonly valid: boolean
}

const INDEXES = `
select t.relname as table, c.relname as name, pg_get_indexdef(i.indexrelid) as definition, i.indisvalid and i.indisready as valid
from pg_index as i
join pg_class as c on c.oid = i.indexrelid
join pg_class as t on t.oid = i.indrelid
where c.relnamespace = ${IN_SCHEMA} and t.relkind in ('r', 'p')
  and not exists (select from pg_constraint as k where k.conindid = i.indexrelid and k.contype in ('p', 'u', 'x'))
order by t.relname, c.relname`

interface TriggerRow {
  readonly table: string
  readonly name: string
  readonly definition: string
  readonly enabled: string
  readonly of_extension: boolean
}

const TRIGGERS = `
select c.relname as table, t.tgname as name, pg_get_triggerdef(t.oid) as definition, t.tgenabled::text as enabled,
  exists (select from pg_depend as d where d.classid = 'pg_proc'::regclass and d.objid = t.tgfoid and d.deptype = 'e')
    or (select p.pronamespace = 'pg_catalog'::regnamespace from pg_proc as p where p.oid = t.tgfoid) as of_extension
from pg_trigger as t join pg_class as c on c.oid = t.tgrelid
where c.relnamespace = ${IN_SCHEMA} and c.relkind in ('r', 'p') and not t.tgisinternal and t.tgparentid = 0
order by c.relname, t.tgname`

const ENABLED = { A: 'always', R: 'replica', D: 'disabled' } as const

function triggerOf({ definition, enabled }: TriggerRow): Trigger {
  const state = Object.entries(ENABLED).find(([code]) => code === enabled)?.[1]
  return { definition: trimmed(definition), ...(state === undefined ? {} : { enabled: state }) }
}

interface FunctionRow {
  readonly name: string
  readonly definition: string
}

const FUNCTIONS = `
select p.proname || '(' || oidvectortypes(p.proargtypes) || ')' as name, pg_get_functiondef(p.oid) as definition
from pg_proc as p
where p.pronamespace = ${IN_SCHEMA} and p.prokind in ('f', 'p')
order by 1`

interface GrantRow {
  readonly role: string
  readonly privilege: string
  readonly object: string
  readonly column: string | null
}

/** The identity of a function has its types as \`oidvectortypes\` prints them. */
const GRANTS = `
with granted as (
  select acl.grantee, acl.privilege_type, 'schema ' || quote_ident(n.nspname) as object, null as column
  from pg_namespace as n, aclexplode(n.nspacl) as acl
  where n.nspname = $1
  union all
  select acl.grantee, acl.privilege_type, c.oid::regclass::text, null
  from pg_class as c, aclexplode(c.relacl) as acl
  where c.relnamespace = ${IN_SCHEMA} and c.relkind in ('r', 'p', 'v')
  union all
  select acl.grantee, acl.privilege_type, c.oid::regclass::text, a.attname
  from pg_class as c join pg_attribute as a on a.attrelid = c.oid and not a.attisdropped, aclexplode(a.attacl) as acl
  where c.relnamespace = ${IN_SCHEMA} and c.relkind in ('r', 'p', 'v')
  union all
  select acl.grantee, acl.privilege_type,
    format('function %I.%I(%s)', n.nspname, p.proname, oidvectortypes(p.proargtypes)), null
  from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace, aclexplode(p.proacl) as acl
  where n.nspname = $1 and p.prokind = 'f'
)
select r.rolname as role, lower(granted.privilege_type) as privilege, granted.object, granted.column
from granted join pg_roles as r on r.oid = granted.grantee
where r.rolname = any ($2::text[])
order by 1, 3, 2, 4`

function grantsOf(rows: readonly GrantRow[], roles: Catalog['roles']): Definitions['grants'] {
  const kindOf = new Map(Object.entries(roles).map(([kind, name]) => [name, kind]))
  const grants: Record<string, Record<string, string[]>> = {}
  for (const { role, privilege, object, column } of rows) {
    const ofRole = (grants[kindOf.get(role) ?? ''] ??= {})
    const ofObject = (ofRole[`${privilege}${column === null ? '' : ' columns'} on ${object}`] ??= [])
    if (column !== null) ofObject.push(column)
  }
  return grants
}

async function readRoles(tx: Queryable): Promise<Catalog['roles']> {
  const { rows } = await tx.query<{ kind: RoleKind; name: string }>({
    text: `select kind, rolname as name
from unnest($1::text[]) as kind
join pg_roles on rolname = coalesce(nullif(current_setting('leasehold.role_prefix', true), ''), $2) || '_' || kind`,
    values: [ROLE_KINDS, DEFAULT_ROLE_PREFIX],
  })
  return Object.fromEntries(rows.map(({ kind, name }) => [kind, name]))
}

function optionsOf(options: readonly string[] | null): Record<string, string> {
  return Object.fromEntries(
    (options ?? []).map((option) => {
      const at = option.indexOf('=')
      return [option.slice(0, at), option.slice(at + 1)]
    }),
  )
}

function byName<Row extends { readonly name: string }, Value>(
  rows: readonly Row[],
  valueOf: (row: Row) => Value,
): Record<string, Value> {
  return Object.fromEntries(rows.map((row) => [row.name, valueOf(row)]))
}

/** A checkout on Windows may have added line ends of its own to the text of functions. */
function trimmed(text: string): string {
  return text
    .split('\n')
    .map((line) => line.trimEnd())
    .join('\n')
    .trim()
}
