import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { runInNewContext } from 'node:vm'
import { beforeEach, describe, expect, it } from 'vitest'
import { useCommandLine } from '../../test/support/command-line.ts'
import { apply } from '../../test/support/lease-migration.ts'
import { projectFile } from '../../test/support/project-files.ts'
import { useRuntimes } from '../../test/support/runtimes.ts'
import { leaseTable, type LeaseTable, openLeaseStore } from '../lease/index.ts'
import { reconciler } from '../reconcile/index.ts'

const { db, url, directory, call } = useCommandLine('lease', 'add')
const start = useRuntimes(url)

beforeEach(async () => {
  await db.query({ text: 'drop schema if exists app cascade' })
  await apply(db, await projectFile('examples/payment-reconciler/migrations/001_payment_requests.sql'))
  await db.query({
    text: `create table app.emails (id bigint generated always as identity primary key, recipient text not null,
      sent_at timestamptz, created_at timestamptz not null default now());
      insert into app.emails (recipient) select 'customer ' || n from generate_series(1, 25) as n`,
  })
})

const EMAILS = ['--table', 'app.emails', '--claimable', 'sent_at is null'] as const
const OF_EXAMPLE = [
  '--table',
  'app.payment_requests',
  '--claimable',
  "status in ('pending', 'detected')",
  '--status',
  'status',
  '--columns',
  'reconcile_lease',
  '--no-token',
]

/** What a person pastes into a program: the text from `leaseTable({` on. */
function pasted(output: string, more = ''): LeaseTable {
  const [, declaration = ''] = output.split('const table = ')
  // The text after `const table =` is an expression of this type.
  return runInNewContext(declaration.replace(/\}\)\s*$/, `${more}})`), { leaseTable }) as LeaseTable
}

async function columnsAndIndexes(table: string): Promise<string[]> {
  const { rows } = await db.query<{ what: string }>({
    text: `select attname || ' ' || format_type(atttypid, atttypmod) || case when attnotnull or atthasdef then '!' else '' end as what
from pg_attribute where attrelid = $1::regclass and attnum > 0 and not attisdropped
union all select pg_get_indexdef(indexrelid) from pg_index where indrelid = $1::regclass order by 1`,
    values: [table],
  })
  return rows.map(({ what }) => what)
}

describe('leasehold lease add', () => {
  it('adds nullable columns and the indexes of the kernel, prints the declaration, and changes nothing the second time', async () => {
    const before = await columnsAndIndexes('app.emails')
    const { code, stdout } = await call(EMAILS)
    expect([code, stdout]).toEqual([
      0,
      `Added to app.emails: lease_owner, lease_until, lease_token, lease_expiries, emails_lease_claim, emails_lease_suspects, emails_lease_leased. Declare it:

// A reconciler takes it as it is. A worker of your own also needs outcomes: how a row is written
// when it is done or dead, so that it is no longer claimable. No failed attempts are counted or limited until the table
// has columns for them (\`attempts\`).
import { leaseTable } from 'leasehold'

const table = leaseTable({
  table: 'app.emails',
  id: 'id',
  lease: { owner: 'lease_owner', until: 'lease_until', token: 'lease_token' },
  claimable: 'sent_at is null',
  order: ['created_at', 'id'],
  attempts: { column: false, expiries: 'lease_expiries', error: false },
})
`,
    ])
    const after = await columnsAndIndexes('app.emails')
    expect(after.filter((what) => !before.includes(what)).toSorted((a, b) => (a < b ? -1 : 1))).toEqual([
      'CREATE INDEX emails_lease_claim ON app.emails USING btree (created_at, id) WHERE (sent_at IS NULL)',
      'CREATE INDEX emails_lease_leased ON app.emails USING btree (id) WHERE (lease_owner IS NOT NULL)',
      'CREATE INDEX emails_lease_suspects ON app.emails USING btree (created_at, id) WHERE ((sent_at IS NULL) AND (COALESCE(lease_expiries, 0) >= 2))',
      'lease_expiries integer',
      'lease_owner text',
      'lease_token bigint',
      'lease_until timestamp with time zone',
    ])

    const second = await call(EMAILS)
    expect([second.code, second.stdout]).toEqual([
      0,
      stdout.replace(/^Added.*Declare/, 'app.emails has its lease already. Declare'),
    ])
    expect(await columnsAndIndexes('app.emails')).toEqual(after)
  })

  it('the declaration that it prints, pasted with its outcomes, is worked by a worker', async () => {
    const { stdout } = await call(EMAILS)
    const table = pasted(stdout, "outcomes: { done: { sent_at: 'now()' }, dead: { sent_at: 'now()' } },")
    const sent: string[] = []
    const { events } = await start([
      {
        name: 'emails',
        table,
        handle: async ({ row }: { row: { recipient: string } }) => {
          sent.push(row.recipient)
          return Promise.resolve()
        },
      },
    ])
    let settled = 0
    await events.next('settled', ({ ids }) => (settled += ids.length) === 25)
    expect(new Set(sent).size).toBe(25)
    const { rows } = await db.query({
      text: `select count(*)::int as sent, count(lease_owner)::int as owned
from app.emails where sent_at is not null`,
    })
    expect(rows).toEqual([{ sent: 25, owned: 0 }])
  })

  it('the declaration is complete for a store and for a reconciler', async () => {
    const { stdout } = await call(['--table', 'app.payment_requests', ...OF_EXAMPLE.slice(2, 6)])
    const table = pasted(stdout)
    await db.query({ text: 'insert into app.payment_requests (amount) values (1), (2)' })
    const store = await openLeaseStore(db, table, { owner: 'w' })
    const { claimed } = await store.claim({ limit: 1, leaseMs: 60_000 })
    expect(await store.release(claimed.map(({ lease }) => lease))).toMatchObject({ ended: [{ owner: 'w' }] })
    const { events } = await start([
      reconciler({
        table,
        transitions: { pending: ['confirmed'], detected: ['confirmed'], confirmed: [] },
        observe: async () => Promise.resolve('confirmed' as const),
      }),
    ])
    let settled = 0
    await events.next('settled', ({ ids }) => (settled += ids.length) === 2)
    const { rows } = await db.query({ text: 'select distinct status from app.payment_requests' })
    expect(rows).toEqual([{ status: 'confirmed' }])
  })

  it('an index that a failed build left invalid is built anew', async () => {
    await call(EMAILS)
    // As a concurrent build leaves it that was interrupted.
    await db.query({
      text: `update pg_index set indisvalid = false where indexrelid = 'app.emails_lease_claim'::regclass`,
    })
    const { code, stdout } = await call(EMAILS)
    expect([code, stdout.split('\n')[0]]).toEqual([0, 'Added to app.emails: emails_lease_claim. Declare it:'])
  })

  it('REC-07: --dry-run prints the migration of the example, word for word, and changes nothing', async () => {
    const before = await columnsAndIndexes('app.payment_requests')
    const { code, stdout } = await call([...OF_EXAMPLE, '--dry-run'])
    expect(code).toBe(0)
    expect(stdout).toBe(await projectFile('examples/payment-reconciler/migrations/002_reconcile_lease.sql'))
    expect(await columnsAndIndexes('app.payment_requests')).toEqual(before)
  })

  it('REC-07: the migration adds nullable columns and the required index to a table with rows, and can be run twice', async () => {
    await db.query({ text: 'insert into app.payment_requests (amount) values (1), (2)' })
    const { stdout } = await call([...OF_EXAMPLE.slice(0, -1), '--dry-run'])
    await apply(db, stdout)
    await apply(db, stdout)
    const { rows } = await db.query({
      text: `select reconcile_lease_owner as owner, reconcile_lease_until as until, reconcile_lease_token as token,
          reconcile_lease_expiries as expiries from app.payment_requests`,
    })
    const none = { owner: null, until: null, token: null, expiries: null }
    expect(rows).toEqual([none, none])
    const index = await db.query<{ def: string }>({
      text: "select pg_get_indexdef('app.payment_requests_reconcile_lease'::regclass) as def",
    })
    expect(index.rows[0]?.def).toMatch(/\(status, reconcile_lease_until, created_at, id\)$/)
  })

  it('--out writes the migration to a new file, and never overwrites a file', async () => {
    const { code, stdout } = await call([...EMAILS, '--columns', 'watch', '--out', '042_lease.sql'])
    expect([code, stdout]).toEqual([
      0,
      'Wrote 042_lease.sql. Run it, and declare the table as its comments say.\n',
    ])
    const file = join(directory(), '042_lease.sql')
    expect(await readFile(file, 'utf8')).toContain('ADD COLUMN IF NOT EXISTS watch_owner text')
    await writeFile(file, 'mine')
    const second = await call([...EMAILS, '--out', '042_lease.sql'])
    expect(second.code).toBe(2)
    expect(second.stderr).toContain('--out is "042_lease.sql": that file already exists')
    expect(await readFile(file, 'utf8')).toBe('mine')
  })

  it.each([
    [['--table', 'app.nothing', '--claimable', 'true'], 1, 'there is no such table'],
    [['--table', 'app.emails', '--claimable', 'snt_at is null'], 1, 'column "snt_at" does not exist'],
    [['--table', 'app.emails', '--claimable', 'created_at < now()'], 1, 'must be marked IMMUTABLE'],
    [['--table', 'app.emails', '--claimable', 'true); drop table app.emails; --'], 1, 'cannot be chosen by'],
    [['--table', 'app.emails', '--claimable', ' '], 2, '--claimable is " "'],
    [[...EMAILS, '--status', 'sentat'], 1, 'no column sentat. Its columns are'],
    [[...EMAILS, '--status', 'sentat'], 1, 'Did you mean sent_at?'],
    [[...EMAILS, '--columns', 'x'.repeat(60)], 1, 'longer than the 63 bytes of a name'],
    [['--table', 'app.emails'], 2, "'--claimable <condition>' not specified"],
    [['--claimable', 'true'], 2, "'--table <name>' not specified"],
    [[...EMAILS, '--out', 'nowhere/x.sql'], 2, '--out is "nowhere/x.sql"'],
  ])(
    'with the arguments %j it exits with %d, says why, and changes nothing',
    async (args, expected, message) => {
      const before = await columnsAndIndexes('app.emails')
      const { code, stdout, stderr } = await call(args)
      expect([code, stdout]).toEqual([expected, ''])
      expect(stderr).toContain(message)
      expect(await columnsAndIndexes('app.emails')).toEqual(before)
    },
  )

  it.each([
    ['without a primary key', 'alter table app.emails drop constraint emails_pkey', 'it has no primary key'],
    [
      'with columns of these names and other types',
      'alter table app.emails add lease_until text, add lease_token uuid',
      'it has lease_until of type text, lease_token of type uuid already',
    ],
    [
      'that is a view',
      'alter table app.emails rename to letters; create view app.emails as select * from app.letters',
      'it is a view, not a table',
    ],
  ])('a table %s is refused', async (_, sql, message) => {
    await db.query({ text: sql })
    const { code, stderr } = await call(EMAILS)
    expect(code).toBe(1)
    expect(stderr).toContain(message)
  })
})
