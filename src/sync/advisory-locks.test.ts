/** SYNC-12: a user of a sync needs no advisory lock, and none of what belongs to a session. */
import { randomBytes } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { afterAll, beforeAll, expect, inject, it } from 'vitest'
import { withAdmin } from '../../test/support/admin.ts'
import { useDatabase } from '../../test/support/database.ts'
import { useRuntimes } from '../../test/support/runtimes.ts'
import { statesOf, syncChunks, watchJobs } from '../../test/support/sync-rows.ts'
import { openDatabase } from '../postgres/database.ts'
import { quoteIdentifier } from '../postgres/identifiers.ts'
import { Events } from '../worker/index.ts'
import { createSync } from './sync.ts'

const { url } = useDatabase()
const role = `test_${randomBytes(6).toString('hex')}`
const password = randomBytes(12).toString('hex')

/** The same database, as somebody who may not lock anything in this way. */
function asUser(): string {
  const changed = new URL(url)
  changed.username = role
  changed.password = password
  return changed.href
}

const clusterUrl = inject('clusterUrl')
const db = openDatabase({ url })

beforeAll(async () => {
  const name = quoteIdentifier(role)
  await db.query({ text: `create role ${name} login password '${password}'` })
  await db.query({ text: `grant usage on schema leasehold to ${name}` })
  await db.query({ text: `grant all on all tables in schema leasehold to ${name}` })
  await db.query({ text: `grant all on all sequences in schema leasehold to ${name}` })
  await db.query({ text: `grant execute on all functions in schema leasehold to ${name}` })
  // Of this database alone. Whoever is not a superuser cannot call them any more.
  const { rows } = await db.query<{ fn: string }>({
    text: `select oid::regprocedure::text as fn from pg_proc where proname ~ 'advisory'`,
  })
  for (const { fn } of rows) await db.query({ text: `revoke execute on function ${fn} from public` })
})
afterAll(async () => {
  await db.query({ text: `drop owned by ${quoteIdentifier(role)}` })
  await db.close()
  await withAdmin(clusterUrl, async (admin) => {
    await admin.query(`drop role ${quoteIdentifier(role)}`)
  })
})

const start = useRuntimes(asUser())

it('SYNC-12: a job is enqueued, planned and completed by a role that may not take advisory locks', async () => {
  const user = openDatabase({ url: asUser() })
  await expect(user.query({ text: 'select pg_advisory_xact_lock(1)' })).rejects.toThrow('permission denied')
  await expect(user.query({ text: 'select pg_try_advisory_lock(1, 2)' })).rejects.toThrow('permission denied')
  await user.close()

  const events = new Events()
  const troubles: unknown[] = []
  events.on('trouble', (event) => troubles.push(event))
  const sync = createSync()
  const defined = sync.define<number>('numbers', {
    plan: () => [1, 2, 3, 4, 5],
    syncChunk: async ({ query }, { attempt, call }) => {
      await call()
      if (query === 3 && attempt === 1) throw new Error('once more')
      return { rows: 1 }
    },
    retry: { firstMs: 1, longestMs: 1 },
    source: { name: 'office', perSecond: 1_000, burst: 10 },
  })
  const { runtime } = await start(sync.runner({ checkEveryMs: 20 }), { events })
  const jobs = watchJobs(events)
  const writer = openDatabase({ url: asUser() })
  const { jobId } = await defined.enqueue(writer, { matrixId: 'm' })
  await writer.close()
  expect(await jobs.ended(jobId)).toBe('done')
  expect(statesOf(await syncChunks(db))).toEqual({ COMPLETED: 5 })
  await runtime.stop()
  expect(troubles).toEqual([])
})

it('SYNC-12: runners are woken for new jobs, new chunks and finished jobs without an advisory lock and without polling', async () => {
  const events = new Events()
  const sync = createSync()
  const defined = sync.define<number>('woken', {
    plan: () => [1, 2, 3],
    syncChunk: async () => Promise.resolve({ rows: 1 }),
  })
  // Longer than the test may take.
  const settings = { pollMs: 3_600_000 }
  await start(sync.runner({ checkEveryMs: 20, jobs: settings, chunks: settings }), { events })
  const jobs = watchJobs(events)
  const writer = openDatabase({ url: asUser() })
  const { jobId } = await defined.enqueue(writer, { matrixId: 'woken' })
  await writer.close()
  expect(await jobs.ended(jobId)).toBe('done')
})

it('SYNC-12: no statement of sync or of the kernel depends on session state', () => {
  const files = ['src/sync', 'src/lease', 'src/worker'].flatMap((folder) =>
    readdirSync(folder, { recursive: true, encoding: 'utf8' })
      .filter((file) => file.endsWith('.ts') && !file.endsWith('.test.ts'))
      .map((file) => `${folder}/${file}`)
      // A command that prepares a table, with a temporary table inside one transaction.
      .filter((file) => file !== 'src/lease/add-lease.ts'),
  )
  const sources = [...files, 'migrations/004_sync.sql'].map(
    (file) => [file, readFileSync(file, 'utf8')] as const,
  )
  const session =
    /pg_(?:try_)?advisory|\bset\s+session\b|\bcreate\s+temp|\bdeclare\s+\w+\s+cursor|\bwith\s+hold\b/i
  expect(sources.filter(([, text]) => session.test(text)).map(([file]) => file)).toEqual([])
  expect(sources.length).toBeGreaterThan(60)
})
