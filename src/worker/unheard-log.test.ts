import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { startProxy } from '../../test/support/proxy.ts'
import { emitOneOfEach } from '../../test/support/sample-events.ts'
import { insertJobs, type Job, WORK_DDL, WORK_TABLE } from '../../test/support/work-table.ts'
import { leaseTable } from '../lease/index.ts'
import { openDatabase } from '../postgres/database.ts'
import { PermanentError } from './completion/outcome.ts'
import { type HandlerContext, SILENT_LOG } from './context.ts'
import { Events } from './events.ts'
import { startRuntime } from './process.ts'
import { logUnheard, STDERR_LOG } from './unheard-log.ts'
import type { RuntimeOptions } from './work-declaration.ts'
import { A_TOKEN } from '../../test/support/tokens.ts'

useQuietProcess()
const { url } = useDatabase()
const db = openDatabase({ url })
let written: string[] = []

beforeAll(async () => {
  await db.query({ text: WORK_DDL })
})
afterAll(async () => db.close())
beforeEach(() => {
  written = []
  vi.spyOn(process.stderr, 'write').mockImplementation((text) => {
    written.push(String(text))
    return true
  })
})
afterEach(() => {
  vi.restoreAllMocks()
})

describe('warnings and errors that no listener was given for', () => {
  it('are written to stderr as one line each, with time, level and message; other events are not', () => {
    const events = new Events()
    logUnheard(events, 'w1', STDERR_LOG)
    emitOneOfEach(events, { error: new Error('connection refused\n  at postgres://ada:secret@db/shop') })
    expect(written.length).toBeGreaterThan(10)
    for (const line of written.filter((text) => !text.includes('the handler failed')))
      expect(line).toMatch(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (?:warn|error) leasehold: [^\n]+\n$/)
    expect(written.map((line) => line.slice(25)).filter((line) => line.includes('renewal'))).toEqual([
      "warn leasehold: a renewal failed: connection refused at postgres://ada:***@db/shop (worker=w1, table=public.emails, ids=[ '7', '8' ])\n",
    ])
    expect(written.join('')).not.toMatch(/secret|claimed|settled as/)
  })

  it('are not written for a type that somebody listens to, nor once somebody listens to all', () => {
    const events = new Events()
    logUnheard(events, 'w1', STDERR_LOG)
    const [error, of] = [new Error('no'), { worker: 'w1', what: 'a bug' }]
    const off = events.on('trouble', () => undefined)
    events.emit('trouble', { ...of, error })
    expect(written).toEqual([])
    off()
    events.emit('trouble', { ...of, error })
    expect(written).toHaveLength(1)
    events.onAny(() => undefined)
    events.emit('trouble', { ...of, error })
    expect(written).toHaveLength(1)
  })

  it('are written by the process that they concern, where several share their events', () => {
    const events = new Events()
    for (const worker of ['w1', 'w2']) logUnheard(events, worker, STDERR_LOG)
    events.emit('workerReturned', { worker: 'w2' })
    expect(written).toHaveLength(1)
  })
})

describe('a process', () => {
  async function failOnce(options: Pick<RuntimeOptions, 'log'> = {}): Promise<void> {
    await insertJobs(db, 1)
    const events = new Events()
    const settled = events.next('settled')
    const handle = async ({ log }: HandlerContext<Job>): Promise<void> => {
      log.warn({ recipient: 7 }, 'about to fail')
      log.info({}, 'not worth a line')
      return Promise.reject(new PermanentError('no such recipient'))
    }
    const workers = [
      { name: 'jobs', table: leaseTable(WORK_TABLE), handle, describe: () => ({ kind: 'job' }) },
    ]
    const runtime = await startRuntime({ databaseUrl: url, heartbeat: 'inline', events, workers, ...options })
    await settled
    await runtime.stop()
  }

  it('without a log writes failures with their stacks, and warnings of its handlers, to stderr', async () => {
    await failOnce()
    expect(written.map((line) => line.slice(25))).toEqual([
      expect.stringMatching(
        /^warn leasehold: about to fail \(worker=.*, id=\d+, token=\d+, recipient=7\)\n$/,
      ),
      expect.stringMatching(
        /^error leasehold: the handler failed: no such recipient \(kind=job, worker=.*, outcome=dead\)\n {4}at .*unheard-log\.test\.ts/,
      ),
    ])
  })

  it.each([
    ['with a worker', [{ name: 'jobs', table: leaseTable(WORK_TABLE), handle: async () => undefined }]],
    ['that only reaps', []],
  ])(
    '%s writes one line for each kind of failure in an outage, and one when the database is back',
    async (_, workers) => {
      const proxy = await startProxy(url)
      const events = new Events()
      const internal = async (type: 'databaseLost' | 'databaseBack', count: number): Promise<void> =>
        new Promise((resolve) => {
          let seen = 0
          events.onInternal(type, () => (seen += 1) === count && resolve())
        })
      const [lost, back] = [internal('databaseLost', 3), internal('databaseBack', 1)]
      const settings = { reaperIntervalMs: 100, pollMs: 50 }
      const reapTables = [{ table: leaseTable(WORK_TABLE) }]
      const options = { heartbeat: 'inline', presenceMs: 100, events, workers, reapTables, settings } as const
      const runtime = await startRuntime({ databaseUrl: proxy.url, ...options, eviction: false })
      await proxy.refuse()
      proxy.cut()
      await lost
      await proxy.accept()
      await back
      const during = [...written]
      await runtime.stop()
      await proxy.close()
      const messages = during.map((line) =>
        line
          .slice(25)
          .replace(/:? \(.*|: (?!un|the|work).*/, '')
          .trim(),
      )
      expect(new Set(messages).size).toBe(messages.length)
      expect(messages.filter((text) => text.includes('unavailable'))).toEqual([
        expect.stringMatching(/^warn leasehold: the database is unavailable/),
      ])
      // Not always the last one: the session that listens may notice its end later than the statements.
      expect(during).toContainEqual(
        expect.stringMatching(/the database is available again \(worker=.*, afterMs=\d+\)\n$/),
      )
      expect(during.join('')).not.toContain('an unexpected error')
    },
  )

  it('a process that was told to have no log writes nothing', async () => {
    await failOnce({ log: false })
    expect(written).toEqual([])
  })

  it('with a log of its own writes there, and nothing to stderr', async () => {
    const entries: [object, string][] = []
    const log = { ...SILENT_LOG, error: (fields: object, message: string) => entries.push([fields, message]) }
    await failOnce({ log: { ...log, child: () => log } })
    expect(entries).toMatchObject([
      [{ event: 'failed', token: A_TOKEN, err: { message: 'no such recipient' } }, 'the handler failed'],
    ])
    expect(written).toEqual([])
  })
})
