/** The start of a worker process while its database is away, has no connection left, or stops statements too soon. */
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it, onTestFinished, vi } from 'vitest'
import { leaseTable } from '../src/lease/index.ts'
import { type Database, migrate, openDatabase } from '../src/postgres/index.ts'
import { Events, startRuntime } from '../src/worker/index.ts'
import { openSession } from './support/database.ts'
import { removeDirectory, temporaryDirectory } from './support/directory.ts'
import { type TestProcess, useProcesses } from './support/processes.ts'
import { startServer, type TestServer } from './support/server.ts'
import { WORK_DDL, WORK_TABLE } from './support/work-table.ts'

const { spawnNode } = useProcesses()
const POLL = { timeout: 120_000, interval: 50 }
const ROLE = 'limited'

let server: TestServer
let admin: Database
let limitedUrl: string

beforeAll(async () => {
  server = await startServer()
  admin = openDatabase({ url: server.url })
  await migrate(admin)
  await admin.query({ text: WORK_DDL })
  await admin.query({
    text: `create role ${ROLE} login password 'only-for-this-test' in role leasehold_worker`,
  })
  await admin.query({ text: `grant all on all tables in schema public to ${ROLE}` })
  const url = new URL(server.url)
  url.username = ROLE
  limitedUrl = url.href
})

afterAll(async () => {
  await admin.close()
  await server.remove()
})

const handle = async (): Promise<void> => Promise.resolve()
const jobs = { name: 'jobs', table: leaseTable(WORK_TABLE), handle }

/** `leasehold work` with one relay, as the role. */
async function work(args: readonly string[] = []): Promise<TestProcess> {
  const directory = await temporaryDirectory()
  await writeFile(
    join(directory, 'leasehold.config.mjs'),
    `import { relay } from '${new URL('../dist/outbox/index.js', import.meta.url).href}'
    export default { workers: [relay({ publisher: { name: 'none', publish: async () => {} } })] }`,
  )
  const process = spawnNode('dist/cli/main.js', ['work', '--no-http', ...args], {
    cwd: directory,
    env: { DATABASE_URL: limitedUrl, LEASEHOLD_PORT: '', LEASEHOLD_SECRET_KEY: '' },
  })
  onTestFinished(async () => {
    await process.kill('SIGKILL')
    await removeDirectory(directory)
  })
  return process
}

/** The role may have so many connections, of which this many are taken. */
async function limitTo(connections: number, taken: number): Promise<readonly { end(): Promise<void> }[]> {
  onTestFinished(async () => void (await admin.query({ text: `alter role ${ROLE} connection limit -1` })))
  await admin.query({ text: `alter role ${ROLE} connection limit ${connections}` })
  return Promise.all(Array.from({ length: taken }, async () => openSession(limitedUrl)))
}

const refusal = /too many connections for role/

it('a worker process whose role has no connection left waits, says so, and starts once there are some', async () => {
  await limitTo(2, 1)
  const process = await work()
  await vi.waitFor(() => expect(process.output().stderr).toMatch(refusal), POLL)
  await admin.query({ text: `alter role ${ROLE} connection limit -1` })
  await process.line((line) => line.includes('Ctrl-C'))
  expect(await process.kill('SIGTERM')).toEqual({ code: 0, signal: null })
})

it('a worker process that waits for its database without a limit ends at SIGTERM', async () => {
  await limitTo(1, 1)
  const process = await work()
  await vi.waitFor(() => expect(process.output().stderr).toMatch(refusal), POLL)
  expect(process.output().stderr).toContain('waiting until it does')
  expect(await process.kill('SIGTERM')).toEqual({ code: 0, signal: null })
})

it('a worker process gives up after databaseWaitMs where it is set', async () => {
  await limitTo(1, 1)
  const process = await work(['--database-wait-ms', '300'])
  expect(await process.exited).toEqual({ code: 1, signal: null })
  expect(process.output().stderr).toMatch(
    /did not answer within databaseWaitMs = 300 ms: .*too many connections/,
  )
})

it('startRuntime waits as long as databaseWaitMs says for a server that starts late', async () => {
  await server.stop('fast')
  const events = new Events()
  const away = events.next('databaseLost')
  const starting = startRuntime({
    databaseUrl: server.url,
    log: false,
    events,
    workers: [jobs],
    databaseWaitMs: Infinity,
  })
  onTestFinished(async () => void (await (await starting).stop()))
  expect(await away).toMatchObject({ what: 'starting', error: { code: 'DATABASE_UNAVAILABLE' } })
  await server.start()
  expect((await starting).state).toBe('running')
})

it('a server that goes away in the middle of a start is waited for', async () => {
  const events = new Events()
  const away = events.next('databaseLost', ({ what }) => what === 'starting')
  let opened = 0
  const open = async ({ db }: { readonly db: Database }): Promise<void> => {
    opened += 1
    if (opened === 1) await server.stop('immediate')
    await db.query({ text: 'select 1' })
  }
  const starting = startRuntime({
    databaseUrl: server.url,
    log: false,
    events,
    workers: [{ ...jobs, open }],
    databaseWaitMs: Infinity,
  })
  onTestFinished(async () => void (await (await starting).stop()))
  await away
  await server.start()
  expect((await starting).state).toBe('running')
  expect(opened).toBeGreaterThan(1)
})

it('a signal ends a start that waits', async () => {
  await limitTo(1, 1)
  const events = new Events()
  const controller = new AbortController()
  events.on('databaseLost', () => controller.abort(new Error('not needed any more')))
  await expect(
    startRuntime({
      databaseUrl: limitedUrl,
      log: false,
      events,
      workers: [jobs],
      databaseWaitMs: Infinity,
      signal: controller.signal,
    }),
  ).rejects.toThrow('not needed any more')
})

it.each([
  ['statement_timeout', async (db: Database) => db.query({ text: 'select pg_sleep(60)' })],
  ['transaction_timeout', async (db: Database) => db.query({ text: 'select pg_sleep(60)' })],
  [
    'idle_in_transaction_session_timeout',
    async (db: Database) =>
      db.transaction(async (tx) => {
        const { rows } = await tx.query<{ pid: number }>({ text: 'select pg_backend_pid() as pid' })
        const pid = rows[0]?.pid
        await vi.waitFor(async () => {
          const text = 'select from pg_stat_activity where pid = $1'
          expect((await admin.query({ text, values: [pid] })).rowCount).toBe(0)
        }, POLL)
        return tx.query({ text: 'select 1' })
      }),
  ],
])('a start that is ended by %s of the role names it, its value and the remedy', async (setting, slow) => {
  await admin.query({ text: `alter role ${ROLE} set ${setting} = '60ms'` })
  onTestFinished(async () => void (await admin.query({ text: `alter role ${ROLE} reset ${setting}` })))
  await expect(
    startRuntime({
      databaseUrl: limitedUrl,
      log: false,
      // It does not come back by itself, so it is not waited for.
      databaseWaitMs: Infinity,
      workers: [{ ...jobs, open: async ({ db }: { readonly db: Database }) => void (await slow(db)) }],
    }),
  ).rejects.toMatchObject({
    code: 'SETTING_INVALID',
    message: expect.stringMatching(
      new RegExp(`^${setting} is 60ms for the role ${ROLE}, .*ALTER ROLE ${ROLE} SET ${setting} = `),
    ),
  })
})
