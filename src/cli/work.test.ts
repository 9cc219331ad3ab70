import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, beforeAll, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest'
import { callLeasehold } from '../../test/support/command-line.ts'
import { useDatabase } from '../../test/support/database.ts'
import { removeDirectory, temporaryDirectory } from '../../test/support/directory.ts'
import { type TestProcess, useProcesses } from '../../test/support/processes.ts'
import { startProxy } from '../../test/support/proxy.ts'
import { makeEndpoint } from '../../test/support/webhook-endpoints.ts'
import { openDatabase } from '../postgres/index.ts'

const { spawnNode } = useProcesses()
const database = useDatabase()
const db = openDatabase({ url: database.url })
const project = new URL('../../', import.meta.url)

beforeAll(async () => {
  await db.query({ text: await readFile(new URL('examples/emails.sql', project), 'utf8') })
})
beforeEach(async () => {
  await db.query({ text: 'truncate public.emails' })
  await db.query({ text: 'truncate leasehold.workers' })
})
afterAll(async () => db.close())

/** A directory with a config file that declares one worker, `emails`, with this handler, and `others`. */
async function directoryWith(handle: string, others = ''): Promise<string> {
  const directory = await temporaryDirectory()
  onTestFinished(async () => removeDirectory(directory))
  await writeFile(
    join(directory, 'leasehold.config.mjs'),
    `import { leaseTable } from '${new URL('dist/index.js', project).href}'
    const say = (line) => process.stdout.write(line + '\\n')
    const emails = leaseTable({
      table: 'public.emails',
      id: 'id',
      lease: { owner: 'lease_owner', until: 'lease_until', token: 'lease_token' },
      claimable: 'sent_at is null and failed_at is null',
      availableAt: 'due_at',
      order: ['due_at', 'id'],
      onExpiry: 'claimable',
      attempts: {},
      outcomes: {
        done: { set: { sent_at: 'now()' } },
        retry: { set: { attempts: 'attempts + 1', last_error: '$error' }, args: { error: 'text', delay_ms: 'float8' } },
        dead: { set: { failed_at: 'now()', last_error: '$error' }, args: { error: 'text' } },
      },
    })
    const handle = async ({ row, signal }) => { ${handle} }
    export default { workers: [{ name: 'emails', table: emails, handle, settings: { pollMs: 20 } }, ${others}] }`,
  )
  return directory
}

const POLL = { timeout: 120_000, interval: 50 }
const SENDS = `say('sent to ' + row.recipient)`
const HANGS = `say('working on ' + row.recipient); await new Promise(() => {})`

function leasehold(directory: string, args: readonly string[], url = database.url): TestProcess {
  const env = { DATABASE_URL: url, LEASEHOLD_PORT: '', LEASEHOLD_SECRET_KEY: '' }
  const process = spawnNode('dist/cli/main.js', args, { cwd: directory, env })
  // Only after a failure: one that is still there would work on the rows of the next test.
  onTestFinished(async () => void (await process.kill('SIGKILL')))
  return process
}

interface Working {
  readonly process: TestProcess
  readonly http: string
  readonly id: string
}

async function started(process: TestProcess): Promise<Working> {
  await process.line((line) => line.includes('Ctrl-C'))
  const shown = async (name: string): Promise<string> =>
    (await process.line((line) => line.startsWith(`  ${name}`))).slice(13).trim()
  return { process, http: await shown('HTTP'), id: await shown('Worker id') }
}

async function work(directory: string, args: readonly string[] = [], url?: string): Promise<Working> {
  return started(leasehold(directory, ['work', ...args], url))
}

async function addEmails(...recipients: readonly string[]): Promise<void> {
  const text = 'insert into public.emails (recipient) select unnest($1::text[])'
  await db.query({ text, values: [recipients] })
}

async function leased(): Promise<number> {
  const text = 'select count(*)::int as leased from public.emails where lease_owner is not null'
  return (await db.query<{ leased: number }>({ text })).rows[0]?.leased ?? -1
}

/** Waits until /readyz names exactly these as failed: nothing tells when it would. */
async function failing(http: string, ...failed: readonly string[]): Promise<void> {
  const ask = async (): Promise<unknown> => (await fetch(`${http}/readyz`)).json()
  await vi.waitFor(async () => expect(await ask()).toMatchObject({ failed }), POLL)
}

/** Waits until a scrape has this sample. */
async function scraped(http: string, sample: string): Promise<void> {
  const ask = async (): Promise<string> => (await fetch(`${http}/metrics`)).text()
  await vi.waitFor(async () => expect(await ask()).toContain(`\n${sample}\n`), POLL)
}

function logOf(process: TestProcess): Record<string, unknown>[] {
  const lines = process.output().stderr.split('\n')
  return lines.filter(Boolean).map((line) => JSON.parse(line) as Record<string, unknown>)
}

describe('leasehold work', () => {
  it('processes the table, counts it in /metrics, and exits with 0 and no leases after a signal; logs the start and stop of each worker', async () => {
    const { process, http, id } = await work(await directoryWith(SENDS), ['--lease-ms', '20000'])
    await addEmails('a@x', 'b@x', 'c@x')
    for (const letter of ['a', 'b', 'c']) await process.line((line) => line === `sent to ${letter}@x`)
    await scraped(http, `leasehold_settled_rows_total{table="public.emails",outcome="done",worker="${id}"} 3`)
    await scraped(http, 'leasehold_worker_processes{state="alive"} 1')
    await scraped(http, 'leasehold_oldest_pending_age_seconds{table="public.emails"} 0')
    await scraped(http, `leasehold_worker_process_info{worker="${id}"} 1`)
    await scraped(http, `leasehold_in_flight_rows{worker="${id}"} 0`)
    expect(await process.kill('SIGTERM')).toEqual({ code: 0, signal: null })
    expect(await leased()).toBe(0)
    const of = { worker: id, role: 'emails', table: 'public.emails', pollMs: 20, leaseMs: 20_000 }
    expect(logOf(process).filter(({ role }) => role === 'emails')).toMatchObject([
      { ...of, msg: 'started' },
      { ...of, msg: 'stopped' },
    ])
    const events = logOf(process).map(({ event }) => event)
    expect(events).toEqual(expect.arrayContaining(['workerStarted', 'workerStopped']))
  })

  it('exits with 1 when a handler does not finish within the timeout and its row is left to the reaper, also without HTTP', async () => {
    const args = ['--no-http', '--shutdown-timeout-ms', '100']
    const { process, http } = await work(await directoryWith(HANGS), args)
    expect(http).toBe('off')
    await addEmails('a@x')
    await process.line((line) => line === 'working on a@x')
    expect(await process.kill('SIGTERM')).toEqual({ code: 1, signal: null })
    expect(await leased()).toBe(1)
    expect(process.output().stderr).toContain('left rows to the reaper')
  })

  it('while it stops, it is alive and not ready, and announces the longest shutdown timeout among the workers that have rows in flight; a second signal ends it at once', async () => {
    const idle = `{ name: 'idle', table: { ...emails, claimable: 'false' }, handle, settings: { leaseMs: 120000, shutdownTimeoutMs: 96000 } }`
    const directory = await directoryWith(HANGS, idle)
    const { process, http } = await work(directory, ['--shutdown-timeout-ms', '7000'])
    await addEmails('a@x')
    await process.line((line) => line === 'working on a@x')
    await failing(http)
    const exit = process.kill('SIGINT')
    await failing(http, 'workers')
    expect((await fetch(`${http}/livez`)).status).toBe(200)
    await expect
      .poll(() => process.output().stderr, POLL)
      .toContain('stopping: 1 row in flight, whose handlers may take up to 7 s to finish')
    await process.kill('SIGTERM')
    expect(await exit).toEqual({ code: 143, signal: null })
  })

  it('survives the loss of the database: /readyz reports it, and /metrics answers everything else', async () => {
    const proxy = await startProxy(database.url)
    onTestFinished(async () => proxy.close())
    const { process, http, id } = await work(await directoryWith(SENDS), [], proxy.url)
    await addEmails('a@x')
    await process.line((line) => line === 'sent to a@x')
    await proxy.refuse()
    proxy.cut()
    await scraped(http, 'leasehold_scrape_errors 8')
    await scraped(http, `leasehold_claims_total{table="public.emails",worker="${id}"} 1`)
    expect((await fetch(`${http}/readyz`)).status).toBe(503)
    await proxy.accept()
    await addEmails('b@x')
    await process.line((line) => line === 'sent to b@x')
    expect(await process.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  })
})

describe('leasehold work --only', () => {
  it('RULE-020-020: without a reaper in any process it logs an error and is not ready; with one elsewhere it is ready', async () => {
    const directory = await directoryWith(SENDS)
    const worker = await work(directory, ['--only', 'emails'])
    expect(worker.process.output().stderr).toContain('no reaper is alive in any process')
    await failing(worker.http, 'reaper')
    const reaper = await work(directory, ['--only', 'reaper'])
    await failing(worker.http)
    for (const { process } of [worker, reaper]) {
      expect(await process.kill('SIGTERM')).toEqual({ code: 0, signal: null })
    }
  })

  it('work --only reaper takes back expired leases of the declared tables, counts them, and processes no rows; exhausted deliveries too, without a key for secrets', async () => {
    const endpoint = await makeEndpoint(db)
    // Its last attempt: only a reaper ends such a delivery.
    await db.query({
      text: `insert into leasehold.webhook_outbox (endpoint_id, event_type, body, attempts, lease_owner, lease_until, lease_token)
values ($1, 'a', '1', 1000, 'vanished', now() - interval '1 minute', 1)`,
      values: [endpoint],
    })
    await db.query({
      text: `insert into public.emails (recipient, lease_owner, lease_until, lease_token)
        values ('a@x', 'w2', now() - interval '1 minute', 5), ('b@x', null, null, 0)`,
    })
    const { process, http, id } = await work(await directoryWith(SENDS), ['--only', 'reaper'])
    await scraped(
      http,
      `reaper_recovered_count_total{table="public.emails",outcome="retry",worker="${id}"} 1`,
    )
    await scraped(http, `reaper_stale_duration_seconds_count{table="public.emails",worker="${id}"} 1`)
    await scraped(
      http,
      `reaper_recovered_count_total{table="leasehold.webhook_outbox",outcome="dead",worker="${id}"} 1`,
    )
    const text =
      'select delivery_status, (select reaps from leasehold.workers) as reaps from leasehold.webhook_outbox'
    await expect
      .poll(async () => (await db.query({ text })).rows)
      .toEqual([{ delivery_status: 'failed', reaps: ['public.emails', 'leasehold.webhook_outbox'] }])
    expect(await process.kill('SIGTERM')).toEqual({ code: 0, signal: null })
    expect(await leased()).toBe(0)
    expect(process.output().stdout).not.toContain('sent to')
    expect(process.output().stdout).toMatch(/Workers {4}reaper\n/)
  })

  it('an unknown name is an error that lists the known names', async () => {
    expect(await refusal(await directoryWith(SENDS), ['--only', 'emials,reaper'])).toMatch(
      /no worker "emials": there are emails, reaper\..*Did you mean emails\?/,
    )
  })
})

async function refusal(
  workingDirectory: string,
  args: readonly string[],
  databaseUrl = database.url,
): Promise<string> {
  const called = await callLeasehold(['work', ...args], { workingDirectory, databaseUrl })
  expect(called).toMatchObject({ code: 1, stdout: '' })
  return called.stderr
}

describe('leasehold work does not start', () => {
  it('without a database URL, because it never starts an embedded database', async () => {
    expect(await refusal(await directoryWith(SENDS), [], '')).toContain('Set DATABASE_URL')
  })

  it('without declared workers', async () => {
    const directory = await temporaryDirectory()
    onTestFinished(async () => removeDirectory(directory))
    expect(await refusal(directory, [])).toContain('no workers are declared')
  })

  it('work does not start on a schema that is not migrated', async () => {
    expect(await refusal(await directoryWith(SENDS), ['--schema', 'nowhere'])).toContain('leasehold migrate')
  })
})

it('leasehold up runs the declared workers and the reaper as well', async () => {
  const { process, http } = await started(leasehold(await directoryWith(SENDS), ['up', '--port', '0']))
  expect(process.output().stdout).toMatch(/Workers {4}emails, reaper\n/)
  await addEmails('a@x')
  await process.line((line) => line === 'sent to a@x')
  await failing(http)
  expect(await process.kill('SIGTERM')).toEqual({ code: 0, signal: null })
})

it('leasehold status shows which workers do not claim and why: an unavailable broker, an operator', async () => {
  const directory = await temporaryDirectory()
  onTestFinished(async () => removeDirectory(directory))
  const recovered = join(directory, 'recovered')
  // An error as hostile as it can be: a password, a text without end, and characters that PostgreSQL cannot store.
  await writeFile(
    join(directory, 'leasehold.config.mjs'),
    `import { existsSync } from 'node:fs'
    import { relay } from ${JSON.stringify(new URL('dist/outbox/index.js', project).href)}
    const probe = async () => {
      if (existsSync(${JSON.stringify(recovered)})) return
      throw new Error('no answer from amqp://me:s3cret@broker\\0 ' + '\\ud83d'.repeat(10_000))
    }
    const publisher = { name: 'mine', publish: async () => {}, probe }
    export default { workers: [relay({ publisher })] }`,
  )
  const { process, id } = await work(directory)
  const pauses = async (): Promise<unknown> => {
    // In this process, because it is asked again and again; below it is a process of its own.
    const options = { databaseUrl: database.url, workingDirectory: directory }
    const status = await callLeasehold(['status', '--json'], options)
    expect(status.code).toBe(0)
    const { workers } = JSON.parse(status.stdout)
    return workers.map((each: { readonly paused: unknown }) => each.paused)
  }
  const isPaused = {
    worker: 'outbox',
    table: 'leasehold.outbox',
    reason: 'unhealthy',
    since: expect.stringMatching(/^\d{4}-.*Z$/),
    error: expect.stringMatching(/^no answer from amqp:\/\/me:\*\*\*@broker\uFFFD \uFFFD{200,300}$/),
  }
  await expect.poll(pauses, POLL).toEqual([[isPaused]])
  const status = leasehold(directory, ['status'])
  await status.exited
  expect(status.output().stdout).toMatch(
    new RegExp(`^PAUSED +WORKER +REASON +FOR +ERROR\noutbox +${id} +unhealthy +\\d+ s +no answer from`, 'm'),
  )
  await db.query({
    text: `insert into leasehold.settings (name, value, changed_by) values ('outbox', '{"paused": true}', 'me')`,
  })
  onTestFinished(async () => void (await db.query({ text: 'delete from leasehold.settings' })))
  await expect.poll(pauses, POLL).toEqual([[isPaused, expect.objectContaining({ reason: 'operator' })]])
  await writeFile(recovered, '')
  await expect.poll(pauses, POLL).toEqual([[expect.objectContaining({ reason: 'operator' })]])
  await db.query({ text: 'delete from leasehold.settings' })
  await expect.poll(pauses, POLL).toEqual([[]])
  expect(await process.kill('SIGTERM')).toEqual({ code: 0, signal: null })
})

it('leasehold status shows the workers, whether a reaper is alive, and what is waiting', async () => {
  const directory = await directoryWith(HANGS)
  const args = ['--only', 'emails', '--shutdown-timeout-ms', '0']
  const { process, id } = await work(directory, args)
  await addEmails('a@x')
  await process.line((line) => line === 'working on a@x')
  await db.query({
    text: `insert into public.emails (recipient, due_at, failed_at) values
      ('later@x', now() + interval '1 hour', null), ('failed@x', now(), now())`,
  })
  const called = await callLeasehold(['status'], { databaseUrl: database.url, workingDirectory: directory })
  expect(called.code).toBe(0)
  const { stdout } = called
  expect(stdout).toMatch(new RegExp(`^WORKER +STATE +ROLES.*\n${id} +alive +emails +\\d+ +\\d+ s ago`))
  expect(stdout).toContain('No reaper is alive')
  expect(stdout).toMatch(/^public\.emails +0 +1 +-$/m)
  expect(await process.kill('SIGTERM')).toEqual({ code: 1, signal: null })
})
