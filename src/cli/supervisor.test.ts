/** `leasehold work --processes`: real processes, real signals. */
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, beforeAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import { callLeasehold } from '../../test/support/command-line.ts'
import { useConfigFiles } from '../../test/support/config-files.ts'
import { useDatabase } from '../../test/support/database.ts'
import { makeEvents } from '../../test/support/outbox-rows.ts'
import { type TestProcess, useProcesses } from '../../test/support/processes.ts'
import { arrivals, createSink } from '../../test/support/worker-process.ts'
import { openDatabase } from '../postgres/index.ts'
import { A_TOKEN } from '../../test/support/tokens.ts'

const { spawnNode } = useProcesses()
const database = useDatabase()
const db = openDatabase({ url: database.url })
const { directoryWith } = useConfigFiles()
const project = new URL('../../', import.meta.url)

beforeAll(async () => createSink(db))
beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.outbox, leasehold.workers, public.sink' })
})
afterAll(async () => db.close())

/**
 * A relay that publishes into `public.sink`. `prelude` runs when the file is imported, with `number`: the number of the
 * process, which is undefined in the supervisor. `publish` runs for each event before it is sent.
 */
function config({ prelude = '', publish = '', worker = '' } = {}): string {
  return `import { existsSync } from 'node:fs'
    import { openDatabase } from '${new URL('dist/index.js', project).href}'
    import { relay } from '${new URL('dist/outbox/index.js', project).href}'
    const say = (line) => process.stdout.write(line + '\\n')
    const order = /"id":"([^"]*-(\\d+))"/.exec(process.argv.join(' '))
    const number = order === null ? undefined : Number(order[2])
    const never = new Promise(() => {})
    ${prelude}
    const sink = openDatabase({ url: ${JSON.stringify(database.url)}, maxConnections: 2 })
    const publisher = {
      name: 'sink',
      maxBatch: 1,
      async publish([event]) {
        const { n } = event.payload
        ${publish}
        await sink.query({
          text: 'insert into public.sink (event_id, key, n, token, relay) values ($1, null, $2, $3, $4)',
          values: [event.eventId, n, String(event.token), order[1]],
        })
      },
      close: async () => sink.close(),
    }
    export default { workers: [{ ...relay({ publisher, retention: false }), ${worker} }] }`
}

/** The first process that gets an event says so, and never finishes it. */
const FIRST_HANGS = `if (event.attempt === 1) { say('holding ' + process.pid); await never }`

function spawnWork(directory: string, args: readonly string[]): TestProcess {
  const env = { DATABASE_URL: database.url, LEASEHOLD_PORT: '', LEASEHOLD_SECRET_KEY: '' }
  const started = spawnNode('dist/cli/main.js', ['work', '--worker-id', 'w', ...args], {
    cwd: directory,
    env,
  })
  // Only after a failure: then nothing may be running any more, not even processes that should have stopped by themselves.
  onTestFinished(async () => {
    const running = (await registered()).filter(({ ended }) => ended === null)
    for (const { pid } of running) if (isRunning(pid)) process.kill(pid, 'SIGKILL')
    await started.kill('SIGKILL')
  })
  return started
}

function isRunning(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch {
    return false
  }
}

/** Starts two processes under the supervisor `w`: number 1 and 2; those that replace them have the numbers from 3 on. */
async function work(directory: string, ...args: readonly string[]): Promise<TestProcess> {
  const started = spawnWork(directory, ['--processes', '2', ...args])
  await started.line((line) => line.includes('Ctrl-C'))
  return started
}

/** The worker id of the process with this number. */
function idOf({ pid }: TestProcess, number: number): string {
  return `w-${pid}-${number}`
}

interface Logged {
  readonly msg: string
  readonly worker?: string
  readonly [field: string]: unknown
}

function logOf(started: TestProcess): Logged[] {
  // Without what follows the last line break: a line of which the rest has not arrived.
  const lines = started.output().stderr.split('\n').slice(0, -1)
  return lines.filter((line) => line.startsWith('{')).map((line) => JSON.parse(line) as Logged)
}

const POLL = { timeout: 120_000, interval: 20 }

/** Waits for this many entries with this message; nothing else tells when they are written. */
async function logged(started: TestProcess, msg: string, count = 1): Promise<Logged[]> {
  const found = (): Logged[] => logOf(started).filter((entry) => entry.msg.startsWith(msg))
  await expect.poll(() => found().length, POLL).toBeGreaterThanOrEqual(count)
  return found()
}

/** Waits until so many events are published. */
async function published(count: number): Promise<void> {
  const text = `select count(*)::int as count from leasehold.outbox where status = 'PUBLISHED'`
  const ask = async (): Promise<number> => (await db.query<{ count: number }>({ text })).rows[0]?.count ?? 0
  await expect.poll(ask, POLL).toBeGreaterThanOrEqual(count)
}

interface Registered {
  readonly id: string
  readonly pid: number
  readonly ended: 'stopped' | 'died' | null
  readonly was_missing: boolean
}

async function registered(): Promise<Registered[]> {
  const { rows } = await db.query<Registered>({
    text: `select id, pid, missing_since is not null as was_missing,
      case when stopped_at is not null then 'stopped' when died_at is not null then 'died' end as ended
    from leasehold.workers order by id`,
  })
  return rows
}

async function httpOf(started: TestProcess): Promise<string> {
  return (await started.line((line) => line.startsWith('  HTTP'))).slice(13).trim()
}

async function readiness(started: TestProcess): Promise<unknown> {
  return (await fetch(`${await httpOf(started)}/readyz`)).json()
}

describe('leasehold work --processes', () => {
  it('RULE-020-020: runs the workers in N processes and the reaper in the supervisor alone; SIGTERM stops all, with exit code 0', async () => {
    const started = await work(await directoryWith(config()))
    const { rows } = await db.query({ text: 'select id, roles, reaps from leasehold.workers order by id' })
    const reaps = ['leasehold.outbox', 'leasehold.webhook_outbox']
    expect(rows).toEqual([
      { id: 'w', roles: ['reaper'], reaps },
      { id: idOf(started, 1), roles: ['outbox'], reaps: [] },
      { id: idOf(started, 2), roles: ['outbox'], reaps: [] },
    ])
    expect(new Set((await registered()).map(({ pid }) => pid)).size).toBe(3)
    expect(started.output().stdout.match(/is up/g)).toHaveLength(1)
    await makeEvents(db, 50)
    await published(50)
    expect(await started.kill('SIGTERM')).toEqual({ code: 0, signal: null })
    expect((await registered()).map(({ ended }) => ended)).toEqual(['stopped', 'stopped', 'stopped'])
    // All of them write into one log: each entry of a process has its worker id.
    const ends = logOf(started).filter(({ msg, role }) => msg === 'stopped' && role === undefined)
    const workers = ends.map(({ worker }) => worker ?? 'the supervisor').toSorted()
    expect(workers).toEqual(['the supervisor', idOf(started, 1), idOf(started, 2)])
  })

  it('RULE-020-052, LIFE-14: the rows of a killed process run elsewhere without anybody missing its session first, and it is restarted', async () => {
    const started = await work(await directoryWith(config({ publish: FIRST_HANGS })))
    await makeEvents(db, 1)
    const held = await started.line((line) => line.startsWith('holding '))
    const pid = Number(held.slice(8))
    process.kill(pid, 'SIGKILL')
    await published(1)
    // Whoever finds that a session has ended writes `missing_since` first, and waits.
    const dead = (await registered()).filter((each) => each.pid === pid)
    expect(dead).toMatchObject([{ ended: 'died', was_missing: false }])
    expect(await arrivals(db)).toMatchObject([{ n: 1, token: A_TOKEN }])
    const { rows } = await db.query({ text: 'select attempts, expiries, last_error from leasehold.outbox' })
    expect(rows).toEqual([{ attempts: 1, expiries: 1, last_error: `the worker process ${dead[0]?.id} died` }])

    expect(await logged(started, 'a worker process has died')).toMatchObject([
      { worker: 'w', died: dead[0]?.id },
    ])
    expect(await logged(started, 'a worker process has ended')).toMatchObject([
      { worker: dead[0]?.id, pid, code: null, signal: 'SIGKILL', restartInMs: 200 },
    ])
    expect((await logged(started, 'a worker process is ready', 3)).at(-1)).toMatchObject({
      worker: idOf(started, 3),
    })
    await expect.poll(async () => readiness(started), POLL).toMatchObject({ status: 'ready' })
    expect(await started.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  })

  it('a process that ends at every start is restarted after a growing delay, while the others work', async () => {
    const directory = await directoryWith('')
    const mended = join(directory, 'mended')
    const prelude = `if (number !== undefined && number !== 2 && !existsSync(${JSON.stringify(mended)})) process.exit(7)`
    await writeFile(join(directory, 'leasehold.config.mjs'), config({ prelude }))
    const started = await work(directory)
    const ends = await logged(started, 'a worker process has ended', 3)
    expect(ends.slice(0, 3)).toMatchObject([
      { code: 7, signal: null, restartInMs: 200 },
      { code: 7, signal: null, restartInMs: 400 },
      { code: 7, signal: null, restartInMs: 800 },
    ])
    await makeEvents(db, 3)
    await published(3)
    expect(new Set((await arrivals(db)).map(({ relay }) => relay))).toEqual(new Set([idOf(started, 2)]))
    const http = await httpOf(started)
    expect(await (await fetch(`${http}/readyz?verbose`)).json()).toMatchObject({
      failed: ['processes'],
      checks: expect.arrayContaining([{ name: 'processes', ok: false, detail: '1 of 2 are ready' }]),
    })
    await writeFile(mended, '')
    await expect.poll(async () => readiness(started), POLL).toMatchObject({ status: 'ready' })
    expect(await started.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  })

  it('with --only and without the reaper, the supervisor reaps the tables of its workers alone; it serves the metrics of all processes in one text, each metric once', async () => {
    const started = await work(await directoryWith(config()), '--only', 'outbox')
    const { rows } = await db.query({ text: 'select id, reaps from leasehold.workers order by id' })
    expect(rows).toEqual([
      { id: 'w', reaps: ['leasehold.outbox'] },
      { id: idOf(started, 1), reaps: [] },
      { id: idOf(started, 2), reaps: [] },
    ])
    const http = await httpOf(started)
    await makeEvents(db, 100)
    await published(100)
    const settled = (text: string): number =>
      [...text.matchAll(/^leasehold_settled_rows_total\{.*worker="w-\d+-[12]"\} (\d+)$/gm)].reduce(
        (sum, [, count]) => sum + Number(count),
        0,
      )
    const scrape = async (): Promise<string> => (await fetch(`${http}/metrics`)).text()
    await expect.poll(async () => settled(await scrape()), POLL).toBe(100)
    const text = await scrape()
    for (const id of ['w', idOf(started, 1), idOf(started, 2)])
      expect(text).toContain(`leasehold_worker_process_info{worker="${id}"} 1\n`)
    expect(text).toContain('leasehold_worker_processes{state="alive"} 3\n')
    const types = [...text.matchAll(/^# TYPE (\S+)/gm)].map(([, name]) => name)
    expect(new Set(types).size).toBe(types.length)

    // One that is told to stop by somebody else is replaced.
    const first = (await registered()).find(({ id }) => id === idOf(started, 1))
    process.kill(first?.pid ?? 0, 'SIGTERM')
    expect(await logged(started, 'a worker process stops without having been told to')).toMatchObject([
      { worker: first?.id, restartInMs: 200 },
    ])
    await logged(started, 'a worker process is ready', 3)
    await expect.poll(async () => readiness(started), POLL).toMatchObject({ status: 'ready' })

    // Settings that change while they run change how long their stop may take.
    await db.query({
      text: `insert into leasehold.settings (name, value, changed_by)
        values ('outbox', '{"leaseMs": 600000, "shutdownTimeoutMs": 500000}', 'a test')`,
    })
    await logged(started, 'the settings have changed', 3)
    expect(await started.kill('SIGTERM')).toEqual({ code: 0, signal: null })
    await db.query({ text: 'truncate leasehold.settings' })
    expect(logOf(started).map(({ msg }) => msg)).toContainEqual(
      expect.stringContaining('2 processes, which may take up to 9 min'),
    )
  })
})

describe('SIGHUP', () => {
  /** Writes events until the promise is settled, so that there is always a backlog of some; returns how many in all. */
  async function eventsUntil(done: Promise<unknown>): Promise<number> {
    const state = { isDone: false }
    const end = done.finally(() => (state.isDone = true))
    let count = 0
    while (!state.isDone) {
      await makeEvents(db, 50)
      count += 50
      await published(count - 200)
    }
    await end
    await published(count)
    return count
  }

  it('LIFE-18, RULE-020-030: replaces every process under load: a new one is ready before the old one stops, and each event is published once', async () => {
    const started = await work(await directoryWith(config()))
    process.kill(started.pid, 'SIGHUP')
    const count = await eventsUntil(logged(started, 'rolled over'))
    const arrived = await arrivals(db)
    expect(arrived).toHaveLength(count)
    expect(new Set(arrived.map(({ event_id: id }) => id)).size).toBe(count)
    // A row that an old process had claimed and not started is released, which costs it no attempt.
    const { rows } = await db.query({
      text: 'select distinct status, attempts, expiries from leasehold.outbox',
    })
    expect(rows).toEqual([{ status: 'PUBLISHED', attempts: 0, expiries: 0 }])

    expect(await registered()).toMatchObject([
      { id: 'w', ended: null },
      { id: idOf(started, 1), ended: 'stopped' },
      { id: idOf(started, 2), ended: 'stopped' },
      { id: idOf(started, 3), ended: null },
      { id: idOf(started, 4), ended: null },
    ])
    const log = logOf(started)
    const entry = (number: number, fits: (one: Logged) => boolean): number =>
      log.findIndex((one) => one.worker === idOf(started, number) && fits(one))
    const ready = (number: number): number => entry(number, ({ msg }) => msg === 'a worker process is ready')
    const stopped = (number: number): number =>
      entry(number, ({ role, msg }) => role === 'outbox' && msg === 'stopped')
    const order = [ready(3), stopped(1), ready(4), stopped(2)]
    expect(order).not.toContain(-1)
    expect(order).toEqual(order.toSorted((a, b) => a - b))
    expect(await readiness(started)).toMatchObject({ status: 'ready' })
    expect(await started.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  })

  it('RULE-020-020: with a config file that cannot be used leaves the old processes running; once it is mended, processes reap by themselves what it declares otherwise than the supervisor, or what that does not know', async () => {
    const directory = await directoryWith(config())
    const file = join(directory, 'leasehold.config.mjs')
    const started = await work(directory)
    await writeFile(file, `throw new Error('a broken release')`)
    process.kill(started.pid, 'SIGHUP')
    expect(await logged(started, 'a new process did not become ready')).toMatchObject([
      { worker: idOf(started, 3), code: 1, signal: null },
    ])
    expect(started.output().stderr).toContain('a broken release')
    await makeEvents(db, 5)
    await published(5)
    const relays = new Set((await arrivals(db)).map(({ relay }) => relay))
    expect([idOf(started, 1), idOf(started, 2)]).toEqual(expect.arrayContaining([...relays]))
    expect(await readiness(started)).toMatchObject({ status: 'ready' })

    await db.query({
      text: `create table public.added (id int primary key, done_at timestamptz, failed_at timestamptz, attempts int not null default 0,
          expiries int not null default 0, last_error text, lease_owner text, lease_until timestamptz, lease_token bigint not null default 0);
        create index on public.added (id) where done_at is null and failed_at is null;
        create index on public.added (id) where done_at is null and failed_at is null and expiries >= 2;
        create index on public.added (id) where lease_owner is not null`,
    })
    const index = new URL('dist/index.js', project).href
    await writeFile(
      file,
      config()
        .replace('retention: false', `retention: false, onFailure: 'park'`)
        .replace(
          'export default { workers: [',
          `import { leaseTable } from '${index}'
          const table = leaseTable({
            table: 'public.added', claimable: 'done_at is null and failed_at is null', attempts: {},
            outcomes: { done: { done_at: 'now()' }, dead: { failed_at: 'now()' } },
          })
          export default { workers: [{ name: 'added', table, handle: async () => {} }, `,
        ),
    )
    process.kill(started.pid, 'SIGHUP')
    await logged(started, 'rolled over')
    const running = (await registered()).filter(({ ended }) => ended === null)
    expect(running.map(({ id }) => id)).toEqual(['w', idOf(started, 4), idOf(started, 5)])
    const { rows } = await db.query({
      text: `select id from leasehold.workers where 'public.added' = any (reaps) and stopped_at is null order by id`,
    })
    expect(rows).toEqual([{ id: idOf(started, 4) }, { id: idOf(started, 5) }])
    expect(started.output().stderr).not.toContain('no reaper is alive')
    expect(await logged(started, 'the processes reap these tables')).toMatchObject([
      { tables: ['public.added', 'leasehold.outbox'] },
    ])
    expect(await started.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  })
})

describe('the end of a supervisor', () => {
  it('RULE-020-030: SIGTERM, with a handler that does not return in time: exit code 1, and its row is taken back at once', async () => {
    const directory = await directoryWith(config({ publish: FIRST_HANGS }))
    const started = await work(directory, '--shutdown-timeout-ms', '100')
    await makeEvents(db, 1)
    await started.line((line) => line.startsWith('holding '))
    expect(await started.kill('SIGTERM')).toEqual({ code: 1, signal: null })
    const { rows } = await db.query({ text: 'select status, attempts, claimed_by from leasehold.outbox' })
    expect(rows).toEqual([{ status: 'PENDING', attempts: 1, claimed_by: null }])
  })

  it('SIGTERM while the first process starts: it is waited for and stopped, and no other is started', async () => {
    const prelude = `if (number !== undefined) say('loading ' + number)`
    const started = spawnWork(await directoryWith(config({ prelude })), ['--processes', '3'])
    await started.line((line) => line === 'loading 1')
    expect(await started.kill('SIGTERM')).toEqual({ code: 0, signal: null })
    expect(started.output().stdout).toBe('loading 1\n')
  })

  it('a second signal kills all processes at once', async () => {
    const started = await work(await directoryWith(config({ publish: FIRST_HANGS })))
    await makeEvents(db, 1)
    await started.line((line) => line.startsWith('holding '))
    const exit = started.kill('SIGTERM')
    await logged(started, 'stopping: 2 processes')
    // `exited` resolves when the last process has closed the output that they share.
    process.kill(started.pid, 'SIGINT')
    expect(await exit).toEqual({ code: 130, signal: null })
    const { rows } = await db.query({ text: 'select status from leasehold.outbox' })
    expect(rows).toEqual([{ status: 'CLAIMED' }])
  })

  it('RULE-020-030: when the supervisor is killed its processes finish what they run, and stop by themselves', async () => {
    const directory = await directoryWith('')
    const finish = join(directory, 'finish')
    const publish = `say('holding ' + process.pid); while (!existsSync(${JSON.stringify(finish)})) await new Promise((resolve) => setTimeout(resolve, 20))`
    await writeFile(join(directory, 'leasehold.config.mjs'), config({ publish }))
    const started = await work(directory)
    await makeEvents(db, 1)
    await started.line((line) => line.startsWith('holding '))
    const exit = started.kill('SIGKILL')
    await logged(started, 'stopping: 1 row in flight')
    await writeFile(finish, '')
    // `exited` resolves when the last process has closed the output that they share.
    expect(await exit).toEqual({ code: null, signal: 'SIGKILL' })
    const children = (await registered()).filter(({ id }) => id !== 'w')
    expect(children).toMatchObject([{ ended: 'stopped' }, { ended: 'stopped' }])
    expect(await arrivals(db)).toMatchObject([{ n: 1, token: A_TOKEN }])
  })
})

describe('leasehold work --processes does not start', () => {
  it('when a process fails at the first start: the error is reported once', async () => {
    const worker = `open: async () => { throw new TypeError('topic is not set.') }`
    const started = spawnWork(await directoryWith(config({ worker })), ['--processes', '3'])
    expect(await started.exited).toEqual({ code: 1, signal: null })
    const { stdout, stderr } = started.output()
    expect(stdout).toBe('')
    expect(stderr.match(/topic is not set/g)).toHaveLength(1)
    expect(stderr).toContain('leasehold: unexpected error\nTypeError: topic is not set.\n    at ')
  })

  it.each([
    [['--processes', '0'], 2, '--processes is "0": give a whole number from 1 to 256.'],
    [['--processes', 'two'], 2, '--processes is "two"'],
    [['--supervised', '{}'], 2, 'only `leasehold work --processes` gives this flag'],
    [['--processes', '2', '--only', 'reaper'], 1, '--processes is 2, but there are no workers for them'],
  ])('with %j: exit code %i and the reason', async (args, code, reason) => {
    const workingDirectory = await directoryWith(config())
    const called = await callLeasehold(['work', ...args], { workingDirectory, databaseUrl: database.url })
    expect(called).toMatchObject({ code, stderr: expect.stringContaining(reason) })
  })
})
