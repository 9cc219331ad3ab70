/**
 * What every role may do with every column, compared with the table in docs/operations/roles.md. A table, a view or a column that is
 * added fails here until somebody has decided who may read and write it.
 */
import { readFile } from 'node:fs/promises'
import { afterAll, describe, expect, it } from 'vitest'
import { openDatabase } from '../src/postgres/index.ts'
import { ROLE_KINDS, type RoleKind } from '../src/postgres/permissions.ts'
import { useDatabase } from './support/database.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
afterAll(async () => db.close())

interface ColumnAccess {
  readonly relation: string
  readonly column: string
  readonly role: RoleKind
  readonly reads: boolean
  readonly inserts: boolean
  readonly updates: boolean
  readonly references: boolean
  readonly deletes: boolean
  readonly rules: boolean
}

/** What each role can do in effect, by its own grants, those of PUBLIC, and those of roles that it inherits from. */
async function access(): Promise<readonly ColumnAccess[]> {
  const { rows } = await db.query<ColumnAccess>({
    text: `select c.relname as relation, a.attname as column, kind as role,
  has_column_privilege(r.oid, c.oid, a.attnum, 'select') as reads,
  has_column_privilege(r.oid, c.oid, a.attnum, 'insert') as inserts,
  has_column_privilege(r.oid, c.oid, a.attnum, 'update') as updates,
  has_column_privilege(r.oid, c.oid, a.attnum, 'references') as references,
  has_table_privilege(r.oid, c.oid, 'delete') as deletes,
  has_table_privilege(r.oid, c.oid, 'truncate') or has_table_privilege(r.oid, c.oid, 'trigger') as rules
from pg_class as c
join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
cross join unnest($1::text[]) with ordinality as kinds (kind, position)
join pg_roles as r on r.rolname = 'leasehold_' || kind
where c.relnamespace = 'leasehold'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f')
order by c.relname, a.attnum, position`,
    values: [ROLE_KINDS],
  })
  return rows
}

function names(rows: readonly ColumnAccess[], may: 'reads' | 'inserts' | 'updates' | 'deletes'): string {
  return [...new Set(rows.filter((row) => row[may]).map(({ role }) => role))].join(', ') || '–'
}

function groupedBy<Item>(items: readonly Item[], key: (item: Item) => string): Map<string, Item[]> {
  const groups = new Map<string, Item[]>()
  for (const item of items) groups.set(key(item), [...(groups.get(key(item)) ?? []), item])
  return groups
}

/** The lines of the table in docs/operations/roles.md: columns that the same roles may read and write share one. */
function documented(rows: readonly ColumnAccess[]): string[] {
  return [...groupedBy(rows, ({ relation }) => relation)].flatMap(([relation, ofTable]) => {
    const columns = [...groupedBy(ofTable, ({ column }) => column)].map(([column, ofColumn]) => ({
      column,
      who: `${names(ofColumn, 'reads')} | ${names(ofColumn, 'inserts')} | ${names(ofColumn, 'updates')} | ${names(ofColumn, 'deletes')}`,
    }))
    return [...groupedBy(columns, ({ who }) => who)].map(
      ([who, list]) => `| ${relation} | ${list.map(({ column }) => column).join(', ')} | ${who} |`,
    )
  })
}

describe('the privileges of the roles', () => {
  it('docs/operations/roles.md says of every column who may read, insert, update and delete it, and the database agrees', async () => {
    const text = await readFile(new URL('../docs/operations/roles.md', import.meta.url), 'utf8')
    const section = text.slice(text.indexOf('## Every privilege'))
    const lines = section.split('\n').filter((line) => /^\| [a-z_]+ \| /.test(line))
    expect(lines.filter((line) => !line.startsWith('| table |'))).toEqual(documented(await access()))
  })

  it('no role may truncate a table, attach a trigger to it or refer to it with a foreign key', async () => {
    const excess = (await access()).filter(({ references, rules }) => references || rules)
    expect(excess).toEqual([])
  })

  it('secrets, and the hashes of keys, sessions and links, are read by the roles that need them only', async () => {
    const secrets: Readonly<Record<string, readonly RoleKind[]>> = {
      // Encrypted. A dispatcher signs; an operator and a tenant, who sees its own only, rotate.
      'webhook_endpoints.secret': ['dispatcher', 'operator', 'tenant'],
      'webhook_endpoints.previous_secret': ['dispatcher', 'operator', 'tenant'],
      'api_keys.hash': ['api'],
      'api_sessions.hash': ['api'],
      'api_portal_links.hash': ['api'],
      'api_requests.request_hash': ['api'],
      'api_requests.answer': ['api'],
    }
    const rows = await access()
    const readers = Object.fromEntries(
      Object.keys(secrets).map((name) => [
        name,
        rows
          .filter(({ relation, column, reads }) => reads && `${relation}.${column}` === name)
          .map(({ role }) => role),
      ]),
    )
    expect(readers).toEqual(secrets)
    const called = rows
      .map(({ relation, column }) => `${relation}.${column}`)
      .filter((name) => /[._](secret|hash|password)$/.test(name) && !/\bsync_/.test(name))
    // A new column with such a name has to be decided upon here.
    expect(Object.keys(secrets)).toEqual(expect.arrayContaining([...new Set(called)]))
  })

  it('a producer reads no payload and writes no column of a lease or a state', async () => {
    const ofProducer = (await access()).filter(({ role }) => role === 'producer')
    const read = ofProducer.filter(({ reads }) => reads).map(({ column }) => column)
    for (const column of ['payload', 'headers', 'body', 'params', 'url', 'secret', 'history', 'last_error'])
      expect(read).not.toContain(column)
    const written = ofProducer.filter(({ inserts, updates }) => inserts || updates)
    expect(written.filter(({ updates }) => updates)).toEqual([])
    const lease =
      /^id$|status|^attempts$|expiries|lock|lease|claimed|token|history|^(?!available|next_attempt).*_at$/
    expect(written.filter(({ column }) => lease.test(column))).toEqual([])
  })

  it('a reader changes nothing', async () => {
    const writes = (await access()).filter(
      ({ role, inserts, updates, deletes }) => role === 'reader' && (inserts || updates || deletes),
    )
    expect(writes).toEqual([])
  })

  it('a function runs with the privileges of its caller, and so does a view', async () => {
    const { rows } = await db.query({
      text: `select p.oid::regprocedure::text as object from pg_proc as p
where p.pronamespace = 'leasehold'::regnamespace and p.prosecdef
union all
select c.oid::regclass::text from pg_class as c
where c.relnamespace = 'leasehold'::regnamespace and c.relkind = 'v'
  and not coalesce(c.reloptions @> array['security_invoker=true'], false)`,
    })
    expect(rows).toEqual([])
  })

  it('the roles cannot log in, have no attribute of an administrator, and are members of what the API acts as only', async () => {
    const { rows: attributes } = await db.query({
      text: `select rolname from pg_roles where rolname = any ($1)
and (rolcanlogin or rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls)`,
      values: [ROLE_KINDS.map((kind) => `leasehold_${kind}`)],
    })
    expect(attributes).toEqual([])
    const { rows: members } = await db.query<{ member: string; role: string }>({
      text: `select m.member::regrole::text as member, m.roleid::regrole::text as role from pg_auth_members as m
where m.member::regrole::text = any ($1) order by 1, 2`,
      values: [ROLE_KINDS.map((kind) => `leasehold_${kind}`)],
    })
    const statistics = ({ role }: { readonly role: string }): boolean => role === 'pg_read_all_stats'
    expect(members.filter((row) => !statistics(row))).toEqual(
      ['operator', 'producer', 'reader', 'tenant'].map((kind) => ({
        member: 'leasehold_api',
        role: `leasehold_${kind}`,
      })),
    )
    expect(members.filter(statistics).map(({ member }) => member)).toEqual([
      'leasehold_api',
      'leasehold_operator',
      'leasehold_reader',
    ])
  })

  it('no role may create anything in the schema, and PUBLIC may not even use it', async () => {
    const { rows } = await db.query({
      text: `select kind, has_schema_privilege(r.oid, 'leasehold', 'usage') as uses, has_schema_privilege(r.oid, 'leasehold', 'create') as creates
from unnest($1::text[]) as kind join pg_roles as r on r.rolname = 'leasehold_' || kind`,
      values: [ROLE_KINDS],
    })
    expect(rows).toEqual(ROLE_KINDS.map((kind) => ({ kind, uses: true, creates: false })))
    const { rows: open } = await db.query({
      text: `select acl.privilege_type from pg_namespace as n, aclexplode(n.nspacl) as acl
where n.nspname = 'leasehold' and acl.grantee = 0`,
    })
    expect(open).toEqual([])
  })
})
