import { afterAll, beforeAll, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { WORK_DDL, WORK_TABLE } from '../../test/support/work-table.ts'
import { leaseTable } from '../lease/index.ts'
import { migrate } from '../postgres/migrate.ts'
import { openDatabase } from '../postgres/database.ts'
import { SILENT_LOG } from './context.ts'
import { Events } from './events.ts'
import { listWorkers } from './registry/registry.ts'
import { startRuntime } from './process.ts'

useQuietProcess()
const { url } = useDatabase()
const db = openDatabase({ url })

beforeAll(async () => {
  await db.query({ text: WORK_DDL })
})
afterAll(async () => db.close())

const handle = async (): Promise<void> => Promise.resolve()

it.each(['thread', 'inline'] as const)(
  'a start that fails because of a table ends all its sessions, and the registry does not show the process as alive (%s)',
  async (heartbeat) => {
    const table = leaseTable({ ...WORK_TABLE, table: 'public.no_such_table' })
    const id = `refused ${heartbeat}`
    await expect(
      startRuntime({
        databaseUrl: url,
        log: false,
        heartbeat,
        id,
        workers: [{ name: 'jobs', table, handle }],
      }),
    ).rejects.toMatchObject({ code: 'LEASE_TABLE_MISMATCH' })
    const text = "select from pg_stat_activity where application_name like 'leasehold%' || $1"
    // The server notices a moment later that a session was closed.
    await expect.poll(async () => (await db.query({ text, values: [id] })).rowCount).toBe(0)
    const registered = (await listWorkers(db, 'leasehold')).filter((worker) => worker.id === id)
    expect(registered.filter(({ state }) => state !== 'stopped')).toEqual([])
  },
)

it.each([
  ['of the process', { settings: { leaseMs: 5_000, shutdownTimeoutMs: 5_001 } }, {}],
  ['of one worker', { settings: { leaseMs: 5_000 } }, { settings: { shutdownTimeoutMs: 5_001 } }],
])(
  'RULE-020-031: a start with a shutdown timeout longer than the lease is refused before anything runs: settings %s',
  async (_, options, declared) => {
    const id = 'refused timeout'
    const workers = [{ name: 'jobs', table: leaseTable(WORK_TABLE), handle, ...declared }]
    await expect(
      startRuntime({ databaseUrl: url, log: false, id, workers, ...options }),
    ).rejects.toMatchObject({
      code: 'SETTING_INVALID',
      message: expect.stringContaining('shutdownTimeoutMs is 5001, but must be at most leaseMs (5000)'),
    })
    expect((await listWorkers(db, 'leasehold')).filter((worker) => worker.id === id)).toEqual([])
  },
)

it('a start that cannot reach the database fails with DATABASE_UNAVAILABLE, and reports no further trouble', async () => {
  const events = new Events()
  const told: string[] = []
  events.on('trouble', ({ what }) => told.push(what))
  const nowhere = new URL(url)
  nowhere.port = '1'
  await expect(
    startRuntime({
      databaseUrl: nowhere.href,
      log: false,
      events,
      workers: [{ name: 'jobs', table: leaseTable(WORK_TABLE), handle }],
    }),
  ).rejects.toMatchObject({ code: 'DATABASE_UNAVAILABLE' })
  expect(told).toEqual([])
})

it('a process is in the registry before its first row is claimed', async () => {
  await db.query({ text: "insert into public.jobs (kind) values ('plain')" })
  const id = 'first of all'
  let seen = (): void => undefined
  const done = new Promise<void>((resolve) => {
    seen = resolve
  })
  // The table itself says who was known when the row was taken.
  await db.query({
    text: `
      create table public.known_then (id text);
      create function public.note_known() returns trigger language plpgsql as $$ begin
        insert into public.known_then select w.id from leasehold.workers w where w.session_pid is not null;
        return new;
      end $$;
      create trigger note_known before update on public.jobs for each row
        when (old.claimed_by is null and new.claimed_by is not null) execute function public.note_known()`,
  })
  const runtime = await startRuntime({
    databaseUrl: url,
    log: false,
    id,
    // A process waits at most 3 s for its registration, and on a busy machine a thread can take longer to start.
    heartbeat: 'inline',
    workers: [
      {
        name: 'jobs',
        table: leaseTable(WORK_TABLE),
        handle: async () => {
          seen()
          return Promise.resolve()
        },
      },
    ],
  })
  await done
  const { rows } = await db.query<{ id: string }>({ text: 'select id from public.known_then' })
  expect(rows.map((row) => row.id)).toContain(id)
  expect(await runtime.stop()).toEqual({ clean: true })
})

it('a process migrates the schema only if it is asked to, and says what to do about a schema that is missing', async () => {
  const options = {
    databaseUrl: url,
    schema: 'unmigrated',
    log: false,
    workers: [{ name: 'jobs', table: leaseTable(WORK_TABLE), handle }],
  } as const
  await expect(startRuntime(options)).rejects.toMatchObject({
    code: 'SETTING_INVALID',
    message: expect.stringMatching(/The schema unmigrated has no .*leasehold migrate.*migrate: true/),
  })
  const schemas = { text: "select from pg_namespace where nspname = 'unmigrated'" }
  expect((await db.query(schemas)).rowCount).toBe(0)
  const runtime = await startRuntime({ ...options, migrate: true })
  expect((await db.query(schemas)).rowCount).toBe(1)
  await runtime.stop()
})

it('a process refuses a schema that is not up to date, and starts on one that another tool has migrated', async () => {
  const schema = 'behind'
  await migrate(db, { schema })
  const options = {
    databaseUrl: url,
    schema,
    log: false,
    workers: [{ name: 'jobs', table: leaseTable(WORK_TABLE), handle }],
  } as const
  await db.query({ text: `delete from ${schema}.migrations where version = 4` })
  await expect(startRuntime(options)).rejects.toMatchObject({
    code: 'SETTING_INVALID',
    message: expect.stringMatching(
      /not up to date: 004_sync\.sql has not been applied\. Run `leasehold migrate`/,
    ),
  })
  await db.query({ text: `update ${schema}.migrations set checksum = 'another' where version = 1` })
  await expect(startRuntime(options)).rejects.toMatchObject({ code: 'MIGRATION_CHANGED' })
  await db.query({ text: `drop table ${schema}.migrations` })
  const runtime = await startRuntime(options)
  await runtime.stop()
})

it('D13, RULE-020-020: a process that does not reap says so where no other process reaps its table, and only there', async () => {
  const said: unknown[] = []
  const log = { ...SILENT_LOG, error: (fields: object, message: string) => said.push([fields, message]) }
  const options = {
    databaseUrl: url,
    workers: [{ name: 'jobs', table: leaseTable(WORK_TABLE), handle }],
  }
  const alone = await startRuntime({ ...options, reaper: false, log, id: 'alone' })
  await alone.stop()
  expect(said).toEqual([
    [
      expect.objectContaining({ worker: 'alone', tables: ['public.jobs'] }),
      expect.stringContaining('no reaper is alive in any process'),
    ],
  ])
  said.length = 0
  const reaper = await startRuntime({ ...options, log: false, id: 'reaps' })
  const served = await startRuntime({ ...options, reaper: false, log, id: 'served' })
  await served.stop()
  await reaper.stop()
  expect(said).toEqual([])
})
