import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { beforeEach, describe, expect, it } from 'vitest'
import { type Called, useCommandLine } from '../../../test/support/command-line.ts'
import { apply } from '../../../test/support/lease-migration.ts'
import { projectFile } from '../../../test/support/project-files.ts'

const { db, directory, call } = useCommandLine('reconcile', 'add-lease')
beforeEach(async () => {
  await db.query({ text: 'drop schema if exists app cascade' })
  await apply(db, await projectFile('examples/payment-reconciler/migrations/001_payment_requests.sql'))
})

async function addLease(...args: readonly string[]): Promise<Called> {
  return call(args)
}

const OF_EXAMPLE = '--table app.payment_requests --status status --open pending,detected --no-token'.split(
  ' ',
)

describe('leasehold reconcile add-lease', () => {
  it('REC-07: add-lease writes the migration of the example to stdout, word for word, and changes nothing', async () => {
    const { code, stdout } = await addLease(...OF_EXAMPLE)
    expect(code).toBe(0)
    expect(stdout).toBe(await projectFile('examples/payment-reconciler/migrations/002_reconcile_lease.sql'))
    const text = `select count(*)::int as count from pg_attribute
      where attrelid = 'app.payment_requests'::regclass and attname::text like 'reconcile%'`
    expect((await db.query<{ count: number }>({ text })).rows).toEqual([{ count: 0 }])
  })

  it('REC-07: the migration adds nullable columns and the required index to a table with rows, and can be run twice', async () => {
    await db.query({ text: 'insert into app.payment_requests (amount) values (1), (2)' })
    const { stdout } = await addLease('--table', 'app.payment_requests', '--status', 'status')
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

  it('add-lease writes to a new file, with another column prefix, and never overwrites a file', async () => {
    const args = ['--table', 'app.payment_requests', '--status', 'status', '--columns', 'watch']
    const { code, stdout } = await addLease(...args, '--out', '042_lease.sql')
    expect([code, stdout]).toEqual([
      0,
      'Wrote 042_lease.sql. Run it, and declare the table as its comments say.\n',
    ])
    const file = join(directory(), '042_lease.sql')
    expect(await readFile(file, 'utf8')).toContain('ADD COLUMN IF NOT EXISTS watch_owner text')
    await writeFile(file, 'mine')
    const second = await addLease(...args, '--out', '042_lease.sql')
    expect(second.code).toBe(2)
    expect(second.stderr).toContain('--out is "042_lease.sql": that file already exists')
    expect(await readFile(file, 'utf8')).toBe('mine')
  })

  it.each([
    [['--table', 'app.nothing', '--status', 'status'], 1, 'there is no such table'],
    [['--table', 'app.payment_requests', '--status', 'state'], 1, 'no column state for the status'],
    [['--table', 'app.payment_requests'], 2, "'--status <column>' not specified"],
    [['--status', 'status'], 2, "'--table <name>' not specified"],
    [[...OF_EXAMPLE, '--open', 'pending,,paid'], 2, '--open is "pending,,paid"'],
    [[...OF_EXAMPLE, '--out', 'nowhere/x.sql'], 2, '--out is "nowhere/x.sql"'],
  ])('add-lease with the arguments %j exits with %d', async (args, expected, message) => {
    const { code, stdout, stderr } = await addLease(...args)
    expect([code, stdout]).toEqual([expected, ''])
    expect(stderr).toContain(message)
  })

  it('add-lease refuses a table that already has the columns', async () => {
    await apply(db, (await addLease(...OF_EXAMPLE)).stdout)
    const { code, stderr } = await addLease(...OF_EXAMPLE)
    expect(code).toBe(1)
    expect(stderr).toContain(
      'it has reconcile_lease_owner, reconcile_lease_until, reconcile_lease_expiries already',
    )
  })
})
