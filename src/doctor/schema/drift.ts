/**
 * Schema drift: what differs between the schema and the snapshot of this release, each with the SQL that repairs it.
 *
 * Not compared are comments; columns that are ours to add and yours to use; the order of columns; and what belongs to
 * tables that sync has adopted (SYNC-14): their other columns, types that serve as well, and defaults of their own.
 */
import { schemaFlag } from '../../operations/shown-commands.ts'
import { isDistributed } from '../../postgres/citus.ts'
import { quoteIdentifier as quote, quoteLiteral, quoteQualified } from '../../postgres/identifiers.ts'
import { hasTables, readLedger, readMigrations } from '../../postgres/migrate.ts'
import { ROLE_KINDS, type RoleKind } from '../../postgres/permissions.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { missingRoles } from '../../postgres/roles.ts'
import { type Check, type Examination, NotApplicable, type Problem } from '../check.ts'
import {
  type Catalog,
  type Column,
  type Definitions,
  type Grants,
  readCatalog,
  type Table,
  type Trigger,
  type View,
} from './catalog.ts'
import { BUCKET_COUNTS, expectedDefinitions, named, readSnapshot } from './snapshot.ts'
import { POLICY_CHECK } from './policies.ts'

/** The schema as it is, and as it must be. */
interface Comparison {
  readonly schema: string
  readonly actual: Catalog
  readonly expected: Definitions
  /** Whether Citus distributes the tables. */
  readonly distributed: boolean
  readonly alternatives: Readonly<Record<string, string>>
}

/** The catalogs are read once for all checks. */
async function comparisonOf(x: Examination): Promise<Comparison> {
  return x.once('schema', async () => compare(x))
}

async function compare({ schema, read }: Examination): Promise<Comparison> {
  const snapshot = await readSnapshot()
  const { missing, ahead } = await read(async (tx) => ledgerState(tx, schema))
  if (missing.length > 0) throw new NotApplicable('migrations are missing: run `leasehold migrate` first')
  if (ahead.length > 0) throw new NotApplicable('the database is ahead of this release')
  return read(async (tx) => {
    const distributed = await isDistributed(tx, schema)
    const actual = await readCatalog(tx, schema)
    const [, count] = /\bRETURN (\d+)$/.exec(actual.functions['bucket_count()'] ?? '') ?? []
    const buckets = Number(count ?? 1)
    const expected = expectedDefinitions(snapshot, { schema, buckets, distributed })
    return {
      schema,
      actual,
      distributed,
      // Where another tool runs the migrations there is no ledger.
      expected: actual.tables['migrations'] === undefined ? withoutLedger(expected) : expected,
      // The same shape, with another name.
      alternatives: named(snapshot.alternatives, { schema, buckets }) as Record<string, string>,
    }
  })
}

function withoutLedger(expected: Definitions): Definitions {
  const { migrations: _, ...tables } = expected.tables
  return { ...expected, tables }
}

interface LedgerState {
  readonly missing: readonly string[]
  readonly changed: readonly string[]
  readonly ahead: readonly number[]
}

async function ledgerState(tx: Queryable, schema: string): Promise<LedgerState> {
  const files = await readMigrations()
  const present = await tx.query<{ present: boolean }>({
    text: 'select to_regclass($1) is not null as present',
    values: [quoteQualified(schema, 'migrations')],
  })
  if (present.rows[0]?.present !== true) return { missing: [], changed: [], ahead: [] }
  const ledger = new Map((await readLedger(tx, schema)).map(({ version, checksum }) => [version, checksum]))
  return {
    missing: files.filter(({ version }) => !ledger.has(version)).map(({ file }) => file),
    changed: files
      .filter(({ version, checksum }) => ledger.has(version) && ledger.get(version) !== checksum)
      .map(({ file }) => file),
    ahead: [...ledger.keys()].filter((version) => version > files.length),
  }
}

async function migrationProblems({ schema, read }: Examination): Promise<Problem[]> {
  return read(async (tx) => {
    if (!(await hasTables(tx, schema)))
      return [
        {
          severity: 'error',
          text: `The schema ${schema} has no tables of Leasehold.`,
          remedy: 'Create them, or name another schema with --schema.',
          repair: [`leasehold migrate${schemaFlag(schema)}`],
        },
      ]
    const { missing, changed, ahead } = await ledgerState(tx, schema)
    const problems: Problem[] = []
    if (missing.length > 0)
      problems.push({
        severity: 'error',
        text: `Not applied to the schema ${schema}: ${missing.join(', ')}.`,
        remedy: 'Migrate before you start workers of this release.',
        repair: [`leasehold migrate${schemaFlag(schema)}`],
      })
    if (changed.length > 0)
      problems.push({
        severity: 'error',
        text: `Applied with another text than this release has: ${changed.join(', ')}.`,
        remedy: 'Restore the files of the release you run. The other checks of the schema say what differs.',
      })
    if (ahead.length > 0)
      problems.push({
        severity: 'warning',
        text: `The database has the migrations ${ahead.join(', ')}, which this release does not know.`,
        remedy: 'Finish the deployment of the newer release.',
      })
    return problems
  })
}

/** Tables that may have existed before, with types that serve as well. */
const ADOPTABLE: ReadonlySet<string> = new Set(['sync_jobs', 'sync_checkpoints'])
/** They are uuids where those of the adopted table were. */
const JOB_IDS: ReadonlySet<string> = new Set(['sync_jobs.id', 'sync_job_chunks.job_id'])
const FAMILIES = [
  ['text', /^character varying/],
  ['integer', /^(?:smallint|bigint)$/],
  ['bigint', /^(?:smallint|integer)$/],
] as const

/** Whether sync has adopted the table: it has columns that are not ours. */
function isAdopted(name: string, expected: Table, actual: Table): boolean {
  return ADOPTABLE.has(name) && Object.keys(actual.columns).some((column) => !(column in expected.columns))
}

/** Each expected table that exists. */
function presentTables({ expected, actual }: Comparison): [name: string, expected: Table, actual: Table][] {
  return Object.entries(expected.tables).flatMap(([name, table]) => {
    const present = actual.tables[name]
    return present === undefined ? [] : [[name, table, present] as [string, Table, Table]]
  })
}

/** Columns of other types that serve as well are cast where they are used. */
function sameExpression(table: string, a: string, b: string): boolean {
  const uncast = (text: string): string =>
    text.replaceAll(/::(?:text|smallint|integer|bigint)/g, '').replaceAll(/[()]/g, '')
  return a === b || (ADOPTABLE.has(table) && uncast(a) === uncast(b))
}

// Tables and columns.

function tableProblems(comparison: Comparison): Problem[] {
  const { schema, expected, actual } = comparison
  const missing = Object.entries(expected.tables).filter(([name]) => actual.tables[name] === undefined)
  return [
    ...missing.map(([name, table]): Problem => ({
      severity: 'error',
      text: `The table ${schema}.${name} is missing.`,
      remedy: 'Restore it from a backup; or create it, without the rows it had.',
      repair: createTable(comparison, name, table),
    })),
    ...presentTables(comparison).flatMap(([name, table, real]) =>
      Object.entries(table.columns).flatMap(([column, wanted]) =>
        columnProblems(comparison, { name, column, wanted, real: real.columns[column] }),
      ),
    ),
  ]
}

interface ComparedColumn {
  readonly name: string
  readonly column: string
  readonly wanted: Column
  readonly real: Column | undefined
}

function columnProblems(comparison: Comparison, { name, column, wanted, real }: ComparedColumn): Problem[] {
  const { schema } = comparison
  const alter = `alter table ${quoteQualified(schema, name)}`
  const what = `The column ${schema}.${name}.${column}`
  if (real === undefined) {
    const canBeFilled =
      wanted.notNull !== true || wanted.default !== undefined || wanted.identity !== undefined
    return [
      {
        severity: 'error',
        text: `${what} is missing.`,
        remedy: canBeFilled
          ? `Restore its values from a backup; or add it, without them.${isComputed(wanted) ? ' Each row gets a value of its own: the table is rewritten, and nobody can read or write it meanwhile.' : ''}`
          : 'Restore the table from a backup. Without its values the column can only be added to an empty table.',
        repair: [
          `${alter} add column ${columnText(column, wanted)}`,
          ...(wanted.storage === undefined
            ? []
            : [`${alter} alter column ${quote(column)} set storage ${wanted.storage}`]),
          ...grantsOn(comparison, quoteQualified(schema, name), column),
        ],
      },
    ]
  }
  const change = `${alter} alter column ${quote(column)}`
  const differences: {
    readonly what: string
    readonly repair: readonly string[]
    readonly locks?: string
  }[] = []
  const isAdoptable = ADOPTABLE.has(name)
  const isSameType =
    real.type === wanted.type ||
    (real.type === 'uuid' && JOB_IDS.has(`${name}.${column}`)) ||
    (isAdoptable && FAMILIES.some(([type, others]) => type === wanted.type && others.test(real.type)))
  if (!isSameType || real.collation !== wanted.collation)
    differences.push({
      what: `is ${typeText(real)} and must be ${typeText(wanted)}`,
      repair: [`${change} type ${typeText(wanted)} using ${quote(column)}::${wanted.type}`],
      locks: 'A change of type rewrites the table, which nobody can read or write meanwhile.',
    })
  const isOwnDefault = isAdoptable && (wanted.default === undefined || wanted.identity !== undefined)
  if (real.default !== wanted.default && !isOwnDefault)
    differences.push({
      what: `has ${real.default === undefined ? 'no default' : `the default ${real.default}`} and must have ${wanted.default ?? 'none'}`,
      repair: [
        wanted.default === undefined ? `${change} drop default` : `${change} set default ${wanted.default}`,
      ],
    })
  if (real.notNull !== wanted.notNull && !(isAdoptable && wanted.notNull !== true))
    differences.push({
      what: wanted.notNull === true ? 'may be null' : 'may not be null',
      repair: wanted.notNull === true ? setNotNull(alter, name, column) : [`${change} drop not null`],
    })
  // A column is an identity only if it has no default and may not be null, so this comes after both.
  if (real.identity !== wanted.identity && !isAdoptable)
    differences.push({
      what: `is ${identityText(real)} and must be ${identityText(wanted)}`,
      repair: [
        wanted.identity === undefined
          ? `${change} drop identity`
          : real.identity === undefined
            ? addIdentity(quoteQualified(schema, name), column, wanted.identity)
            : `${change} set generated ${wanted.identity}`,
      ],
      ...(wanted.identity !== undefined && real.identity === undefined
        ? {
            locks:
              'To find the highest number the table is read, and nobody else can read or write it meanwhile.',
          }
        : {}),
    })
  if (real.storage !== wanted.storage && !isAdoptable)
    differences.push({
      what: `has the storage ${real.storage ?? 'of its type'} and must have ${wanted.storage ?? 'that of its type'}`,
      repair: [`${change} set storage ${wanted.storage ?? 'default'}`],
    })
  if (differences.length === 0) return []
  return [
    {
      severity: 'error',
      text: `${what} ${differences.map((difference) => difference.what).join('; it ')}.`,
      remedy: ['Change it back.', ...differences.flatMap(({ locks = [] }) => locks)].join(' '),
      repair: differences.flatMap(({ repair }) => repair),
    },
  ]
}

/** Whether each row has another value: of an identity, or of a function that is not stable as now() is. */
function isComputed({ identity, default: value }: Column): boolean {
  return identity !== undefined || (value?.includes('(') === true && value !== 'now()')
}

function typeText({ type, collation }: Column): string {
  return collation === undefined ? type : `${type} collate ${collation}`
}

/** With a constraint that was validated before, PostgreSQL need not read the table while it is locked. */
function setNotNull(alter: string, table: string, column: string): string[] {
  const constraint = quote(`${table}_${column}_is_given`)
  return [
    `${alter} add constraint ${constraint} check (${quote(column)} is not null) not valid`,
    `${alter} validate constraint ${constraint}`,
    `${alter} alter column ${quote(column)} set not null, drop constraint ${constraint}`,
  ]
}

/** One statement, so that no row gets a number before the sequence starts behind the rows that are there. */
function addIdentity(target: string, column: string, identity: string): string {
  return `do $$ begin
  alter table ${target} alter column ${quote(column)} add generated ${identity} as identity;
  perform setval(pg_get_serial_sequence(${quoteLiteral(target)}, ${quoteLiteral(column)}), coalesce(max(${quote(column)}), 0) + 1, false)
  from ${target};
end $$`
}

function identityText({ identity }: Column): string {
  return identity === undefined ? 'no identity column' : `generated ${identity} as identity`
}

function columnText(name: string, column: Column): string {
  return [
    quote(name),
    typeText(column),
    ...(column.identity === undefined ? [] : [`generated ${column.identity} as identity`]),
    ...(column.default === undefined ? [] : [`default ${column.default}`]),
    ...(column.notNull === true ? ['not null'] : []),
  ].join(' ')
}

function createTable(comparison: Comparison, name: string, table: Table): string[] {
  const { schema } = comparison
  const target = quoteQualified(schema, name)
  const lines = [
    ...Object.entries(table.columns).map(([column, each]) => columnText(column, each)),
    ...Object.entries(table.constraints).map(
      ([each, definition]) => `constraint ${quote(each)} ${definition}`,
    ),
  ]
  const stored = Object.entries(table.columns).filter(([, { storage }]) => storage !== undefined)
  return [
    `create table ${target} (\n  ${lines.join(',\n  ')}\n)${optionsText(table.options)}`,
    ...stored.map(
      ([column, { storage = '' }]) =>
        `alter table ${target} alter column ${quote(column)} set storage ${storage}`,
    ),
    ...Object.values(table.indexes),
    ...Object.entries(table.triggers).flatMap(([trigger, each]) => createTrigger(target, trigger, each)),
    ...grantsOn(comparison, target),
  ]
}

function optionsText(options: Readonly<Record<string, string>>): string {
  const all = Object.entries(options).map(([name, value]) => `${name}=${value}`)
  return all.length === 0 ? '' : ` with (${all.join(', ')})`
}

// Constraints.

function constraintProblems(comparison: Comparison): Problem[] {
  const { schema, actual, distributed } = comparison
  const locksOf = (definition: string): string =>
    distributed && KEY.test(definition)
      ? ' Citus creates its index while nobody can read or write the table.'
      : ''
  const addConstraint = constraintAdder(comparison)
  return presentTables(comparison).flatMap(([name, table, real]) =>
    Object.entries(table.constraints).flatMap(([constraint, definition]): Problem[] => {
      const alter = `alter table ${quoteQualified(schema, name)}`
      const what = `The constraint ${constraint} of ${schema}.${name}`
      const found = real.constraints[constraint]
      if (found === undefined) {
        // The foreign keys of sync_job_chunks need a unique constraint, whatever its name is.
        if (ADOPTABLE.has(name) && definition.startsWith('PRIMARY KEY')) return []
        return [
          {
            severity: 'error',
            text: `${what} is missing.`,
            remedy: `Add it. Rows that break it have to be corrected first.${locksOf(definition)}`,
            repair: addConstraint(name, constraint, definition),
          },
        ]
      }
      if (!sameExpression(name, found, definition))
        return [
          {
            severity: 'error',
            text: `${what} is ${found} and must be ${definition}.`,
            remedy: `Replace it. Rows that break it have to be corrected first.${locksOf(definition)}`,
            repair: addConstraint(name, constraint, definition, 'replace'),
          },
        ]
      if (!actual.unvalidated.has(`${name}.${constraint}`)) return []
      return [
        {
          severity: 'warning',
          text: `${what} is not validated: older rows may break it.`,
          remedy: 'Validate it. Rows that break it have to be corrected first.',
          repair: [`${alter} validate constraint ${quote(constraint)}`],
        },
      ]
    }),
  )
}

const KEY = /^(PRIMARY KEY|UNIQUE) (\([^()]+\))$/

/**
 * The statements that add a constraint, in place of the one that there is. Adding and validating apart, and an index that
 * was created before, hold the strong lock for a moment only. Citus takes no constraint whose index was created before.
 */
function constraintAdder({ schema, distributed }: Comparison) {
  return (table: string, name: string, definition: string, replace?: 'replace'): string[] => {
    const alter = `alter table ${quoteQualified(schema, table)}`
    const drop = replace === undefined ? '' : `drop constraint ${quote(name)}, `
    const [, kind, columns] = KEY.exec(definition) ?? []
    if (kind !== undefined && !distributed) {
      const index = quote(`${name}_new`)
      return [
        `create unique index concurrently ${index} on ${quoteQualified(schema, table)} ${columns}`,
        `${alter} ${drop}add constraint ${quote(name)} ${kind.toLowerCase()} using index ${index}`,
      ]
    }
    const add = `${alter} ${drop}add constraint ${quote(name)} ${definition}`
    if (kind !== undefined) return [add]
    return [`${add} not valid`, `${alter} validate constraint ${quote(name)}`]
  }
}

// Indexes.

/** Tables in which every claim and every settlement writes into all indexes. */
const BUSY_TABLES: ReadonlySet<string> = new Set(['outbox', 'webhook_outbox'])

function indexProblems(comparison: Comparison, remark: Examination['remark']): Problem[] {
  const { schema, actual } = comparison
  return presentTables(comparison).flatMap(([name, table, real]) => {
    const problems: Problem[] = []
    for (const [index, definition] of Object.entries(table.indexes)) {
      const found = real.indexes[index]
      const what = `The index ${schema}.${index}`
      const create = concurrently(definition)
      const drop = `drop index concurrently ${quoteQualified(schema, index)}`
      if (found === undefined)
        problems.push({
          severity: 'error',
          text: `${what} is missing.`,
          remedy: 'Create it. Workers and producers continue meanwhile.',
          repair: [create],
        })
      else if (!sameExpression(name, found, definition))
        problems.push({
          severity: 'error',
          text: `${what} is ${found} and must be ${definition}.`,
          remedy: 'Replace it. Workers and producers continue meanwhile.',
          repair: [
            create.replace(` ${quote(index)} ON `, () => ` ${quote(`${index}_new`)} ON `),
            drop,
            `alter index ${quoteQualified(schema, `${index}_new`)} rename to ${quote(index)}`,
          ],
        })
      else if (actual.invalidIndexes.has(index))
        problems.push({
          severity: 'error',
          text: `${what} is invalid: its creation failed, and PostgreSQL does not use it.`,
          remedy: 'Create it once more.',
          repair: [drop, create],
        })
    }
    for (const index of Object.keys(real.indexes).filter((each) => !(each in table.indexes))) {
      const isInvalid = actual.invalidIndexes.has(index)
      if (isInvalid)
        problems.push({
          severity: 'warning',
          text: `The index ${schema}.${index} is invalid: its creation failed, and it only costs time.`,
          remedy: 'Drop it.',
          repair: [`drop index concurrently ${quoteQualified(schema, index)}`],
        })
      else if (BUSY_TABLES.has(name))
        remark(
          `The index ${schema}.${index} is not one of Leasehold's. Every claim and every settlement writes into it. Drop it if you can do without it.`,
        )
    }
    return problems
  })
}

function concurrently(definition: string): string {
  return definition.replace(/^CREATE (UNIQUE )?INDEX /, 'CREATE $1INDEX CONCURRENTLY ')
}

// Triggers.

function triggerProblems(comparison: Comparison): Problem[] {
  const { schema, actual } = comparison
  return presentTables(comparison).flatMap(([name, table, real]) => {
    const target = quoteQualified(schema, name)
    const problems = Object.entries(table.triggers).flatMap(([trigger, wanted]): Problem[] => {
      const found = real.triggers[trigger]
      const what = `The trigger ${trigger} of ${schema}.${name}`
      if (found === undefined)
        return [
          {
            severity: 'error',
            text: `${what} is missing.`,
            remedy: 'Create it.',
            repair: createTrigger(target, trigger, wanted),
          },
        ]
      if (found.definition !== wanted.definition)
        return [
          {
            severity: 'error',
            text: `${what} is ${found.definition} and must be ${wanted.definition}.`,
            remedy: 'Replace it.',
            repair: [
              `drop trigger ${quote(trigger)} on ${target}`,
              ...createTrigger(target, trigger, wanted),
            ],
          },
        ]
      if (found.enabled === wanted.enabled) return []
      return [
        {
          severity: 'error',
          text: `${what} is ${stateText(found)} and must be ${stateText(wanted)}.`,
          remedy: 'Enable it as it was.',
          repair: [enableTrigger(target, trigger, wanted)],
        },
      ]
    })
    const others = Object.keys(real.triggers).filter(
      (trigger) => !(trigger in table.triggers) && !actual.triggersOfExtensions.has(`${name}.${trigger}`),
    )
    return [
      ...problems,
      ...others.map((trigger): Problem => ({
        severity: 'warning',
        text: `The trigger ${trigger} of ${schema}.${name} is not one of Leasehold's. It runs in the transactions of producers and workers, which fail when it fails.`,
        remedy: 'Drop it if you can do without it. To react to rows, publish events to a handler.',
        repair: [`drop trigger ${quote(trigger)} on ${target}`],
      })),
    ]
  })
}

function stateText({ enabled }: Trigger): string {
  if (enabled === undefined) return 'enabled'
  return enabled === 'disabled' ? enabled : `enabled ${enabled}`
}

function createTrigger(target: string, name: string, trigger: Trigger): string[] {
  return [
    trigger.definition,
    ...(trigger.enabled === undefined ? [] : [enableTrigger(target, name, trigger)]),
  ]
}

function enableTrigger(target: string, name: string, { enabled }: Trigger): string {
  const how = enabled === undefined ? 'enable' : enabled === 'disabled' ? 'disable' : `enable ${enabled}`
  return `alter table ${target} ${how} trigger ${quote(name)}`
}

// Functions and views.

function functionProblems(comparison: Comparison): Problem[] {
  const { schema, expected, actual, alternatives } = comparison
  return Object.entries(expected.functions).flatMap(([name, definition]): Problem[] => {
    const found = actual.functions[name]
    const what = `The function ${schema}.${name}`
    if (found === undefined) {
      const grants = grantsOn(comparison, `function ${quote(schema)}.${name}`)
      return [
        {
          severity: 'error',
          text: `${what} is missing.`,
          remedy: 'Create it.',
          repair: [definition, ...grants],
        },
      ]
    }
    if (
      [definition, alternatives[name]].some((each) => each !== undefined && sameFunction(name, each, found))
    )
      return []
    return [
      {
        severity: 'error',
        text: `${what} is not the one of this release.`,
        remedy: 'Replace it. Somebody has changed it, or a dump of another release was restored.',
        repair: [definition],
      },
    ]
  })
}

/** Indentation does not matter: statements are pasted. The numbers of buckets are those that were chosen. */
function sameFunction(name: string, a: string, b: string): boolean {
  const plain = (text: string): string => {
    const oneLine = text.replaceAll(/\s+/g, ' ')
    return BUCKET_COUNTS.includes(name) ? oneLine.replace(/\bRETURN \d+$/, 'RETURN n') : oneLine
  }
  return plain(a) === plain(b)
}

function viewProblems(comparison: Comparison): Problem[] {
  const { schema, expected, actual } = comparison
  return Object.entries(expected.views).flatMap(([name, view]): Problem[] => {
    const found = actual.views[name]
    const target = quoteQualified(schema, name)
    const create = [
      `create view ${target}${optionsText(view.options)} as ${view.definition}`,
      ...grantsOn(comparison, target),
    ]
    if (found === undefined)
      return [
        {
          severity: 'error',
          text: `The view ${schema}.${name} is missing.`,
          remedy: 'Create it.',
          repair: create,
        },
      ]
    if (sameView(view, found)) return []
    return [
      {
        severity: 'error',
        text: `The view ${schema}.${name} is not the one of this release.`,
        remedy: 'Replace it. Views of your own that read it have to be dropped first, and created once more.',
        repair: [`drop view ${target}`, ...create],
      },
    ]
  })
}

/** Before PostgreSQL 16 the text of a view names the table before each of its columns. */
function sameView(a: View, b: View): boolean {
  const plain = ({ definition }: View): string =>
    definition.replaceAll(/(?:"[^"]+"|\w+)\.(?=["a-z_])/g, '').replaceAll(/\s+/g, ' ')
  return plain(a) === plain(b) && optionsText(a.options) === optionsText(b.options)
}

// Privileges.

function grantProblems(comparison: Comparison): Problem[] {
  return ROLE_KINDS.flatMap((kind): Problem[] => {
    const role = comparison.actual.roles[kind]
    // That it is missing is a finding of another check.
    if (role === undefined) return []
    const expected = existing(comparison, comparison.expected.grants[kind] ?? {})
    const actual = comparison.actual.grants[kind] ?? {}
    const missing = without(expected, actual)
    const excess = without(existing(comparison, actual), expected)
    const problems: Problem[] = []
    if (missing.length > 0)
      problems.push({
        severity: 'error',
        text: `The role ${role} lacks ${missing.join(', ')}.`,
        remedy: 'Grant it, or let `leasehold roles` grant everything.',
        repair: missing.map((privilege) => `grant ${privilege} to ${quote(role)}`),
      })
    if (excess.length > 0)
      problems.push({
        severity: 'warning',
        text: `The role ${role} has more than it needs: ${excess.join(', ')}.`,
        remedy: 'Revoke it, or grant it to a role of your own instead.',
        repair: excess.map((privilege) => `revoke ${privilege} from ${quote(role)}`),
      })
    return problems
  })
}

/** Those on objects and columns that exist and that Leasehold knows. */
function existing({ schema, actual, expected }: Comparison, grants: Grants): Grants {
  const columnsOf = new Map<string, readonly string[] | undefined>([
    [`schema ${quote(schema)}`, undefined],
    ...Object.keys({ ...expected.tables, ...expected.views })
      .filter((name) => name in actual.tables || name in actual.views)
      .map((name): [string, string[]] => [
        quoteQualified(schema, name),
        Object.keys(actual.tables[name]?.columns ?? {}),
      ]),
    ...Object.keys(expected.functions)
      .filter((name) => name in actual.functions)
      .map((name): [string, undefined] => [`function ${quote(schema)}.${name}`, undefined]),
  ])
  return Object.fromEntries(
    Object.entries(grants).flatMap(([grant, columns]) => {
      const object = objectOf(grant)
      if (!columnsOf.has(object)) return []
      const present = columns.filter((column) => columnsOf.get(object)?.includes(column))
      return columns.length > 0 && present.length === 0 ? [] : [[grant, present]]
    }),
  )
}

const COLUMNS = ' columns'

function objectOf(grant: string): string {
  return grant.slice(grant.indexOf(' on ') + 4)
}

/** As SQL: `select (id, url) on leasehold.webhook_endpoints`. */
function without(some: Grants, others: Grants): string[] {
  return Object.entries(some).flatMap(([grant, columns]) => {
    if (columns.length === 0) return others[grant] === undefined ? [grant] : []
    // Who may read the table may read its columns.
    if (others[grant.replace(COLUMNS, '')] !== undefined) return []
    const rest = columns.filter((column) => !(others[grant] ?? []).includes(column))
    return rest.length === 0 ? [] : [grant.replace(COLUMNS, ` (${rest.map(quote).join(', ')})`)]
  })
}

/** The statements that grant what the roles need on one object, or on one of its columns. */
function grantsOn({ expected, actual }: Comparison, object: string, column?: string): string[] {
  return ROLE_KINDS.flatMap((kind: RoleKind) => {
    const role = actual.roles[kind]
    if (role === undefined) return []
    const own = Object.entries(expected.grants[kind] ?? {})
      .filter(([grant]) => objectOf(grant) === object)
      .filter(([, columns]) => column === undefined || columns.includes(column))
      .map(([grant, columns]) => [grant, column === undefined ? columns : [column]])
    return without(Object.fromEntries(own), {}).map((privilege) => `grant ${privilege} to ${quote(role)}`)
  })
}

// Settings of the tables.

/** Whether autovacuum treats the tables as the migrations say. */
export async function autovacuumOptions(x: Examination): Promise<Problem[]> {
  const comparison = await comparisonOf(x)
  return presentTables(comparison).flatMap(([name, table, real]): Problem[] => {
    if (isAdopted(name, table, real)) return []
    const target = quoteQualified(comparison.schema, name)
    const changed = Object.entries(table.options).filter(([option, value]) => real.options[option] !== value)
    const added = Object.keys(real.options).filter(
      (option) => option.startsWith('autovacuum_') && !(option in table.options),
    )
    if (changed.length === 0 && added.length === 0) return []
    const isOff = isFalse(real.options['autovacuum_enabled'])
    const differences = [
      ...changed.map(
        ([option, value]) => `${option} is ${real.options[option] ?? 'not set'} and was shipped as ${value}`,
      ),
      ...added.map((option) => `${option} is ${real.options[option]} and was not set`),
    ]
    return [
      {
        severity: isOff ? 'error' : 'warning',
        text: `The settings of the table ${comparison.schema}.${name} were changed: ${differences.join('; ')}.`,
        remedy: isOff
          ? 'Turn autovacuum on: without it claims become slower with every row.'
          : 'Set them back, unless you have measured that yours are better.',
        repair: [
          ...(changed.length === 0
            ? []
            : [
                `alter table ${target} set (${changed.map(([option, value]) => `${option}=${value}`).join(', ')})`,
              ]),
          ...(added.length === 0 ? [] : [`alter table ${target} reset (${added.join(', ')})`]),
        ],
      },
    ]
  })
}

function isFalse(value: string | undefined): boolean {
  return value !== undefined && ['off', 'false', 'no', '0'].includes(value.toLowerCase())
}

// Roles, and the number of buckets.

async function roleProblems(x: Examination): Promise<Problem[]> {
  const missing = await x.read(async (tx) => missingRoles(tx, x.schema))
  if (missing.length === 0) return []
  return [
    {
      severity: 'warning',
      text: `The ${missing.length === 1 ? 'role' : 'roles'} ${missing.join(', ')} ${missing.length === 1 ? 'does' : 'do'} not exist, so that every process has to run as the owner of the schema.`,
      remedy:
        'Create them; where this role may not, let an administrator run what `leasehold roles --print` prints.',
      repair: [`leasehold roles${schemaFlag(x.schema)}`],
    },
  ]
}

async function bucketProblems({ schema, read, notSeen }: Examination): Promise<Problem[]> {
  const call = (name: string): string => `${quoteQualified(schema, name)}()`
  const unfinishedRows = call('has_rows_of_previous_buckets')
  const { count, previous, unfinished } = await read(async (tx) => {
    const { rows } = await tx.query<{ count: number; previous: number; may_ask: boolean }>({
      text: `select ${call('bucket_count')} as count, ${call('previous_bucket_count')} as previous,
  has_function_privilege($1, 'execute') as may_ask`,
      values: [unfinishedRows],
    })
    const [counts = { count: 1, previous: 1, may_ask: true }] = rows
    if (counts.count === counts.previous) return { ...counts, unfinished: false }
    if (!counts.may_ask) {
      notSeen(`whether rows of the old buckets are unfinished: GRANT EXECUTE ON FUNCTION ${unfinishedRows}`)
      return { ...counts, unfinished: true }
    }
    const asked = await tx.query<{ unfinished: boolean }>({ text: `select ${unfinishedRows} as unfinished` })
    return { ...counts, unfinished: asked.rows[0]?.unfinished === true }
  })
  if (count === previous) return []
  return [
    {
      severity: 'warning',
      text: `The number of buckets was raised from ${previous} to ${count}, and the old number is still in use.`,
      remedy: unfinished
        ? 'Rows of ordering keys that were written before are unfinished. Repeat the command when they are finished; until then the number cannot be raised once more.'
        : 'Repeat the command, so that writers no longer look into the old buckets.',
      repair: [`leasehold migrate --buckets ${count}${schemaFlag(schema)}`],
    },
  ]
}

const compared =
  (find: (comparison: Comparison, remark: Examination['remark']) => Problem[]): Check['run'] =>
  async (x) =>
    find(await comparisonOf(x), x.remark)

export const SCHEMA_CHECKS: readonly Check[] = [
  {
    id: 'schema-migrations',
    title: 'migrations that are missing or changed',
    needs: 'server',
    run: migrationProblems,
  },
  { id: 'schema-tables', title: 'tables and columns', needs: 'tables', run: compared(tableProblems) },
  { id: 'schema-constraints', title: 'constraints', needs: 'tables', run: compared(constraintProblems) },
  { id: 'schema-indexes', title: 'indexes', needs: 'tables', run: compared(indexProblems) },
  { id: 'schema-triggers', title: 'triggers', needs: 'tables', run: compared(triggerProblems) },
  { id: 'schema-functions', title: 'functions', needs: 'tables', run: compared(functionProblems) },
  { id: 'schema-views', title: 'views', needs: 'tables', run: compared(viewProblems) },
  { id: 'schema-roles', title: 'the database roles', needs: 'tables', run: roleProblems },
  {
    id: 'schema-grants',
    title: 'privileges of the database roles',
    needs: 'tables',
    run: compared(grantProblems),
  },
  POLICY_CHECK,
  { id: 'schema-buckets', title: 'a raised number of buckets', needs: 'tables', run: bucketProblems },
]
