import { beforeEach, describe, expect, it } from 'vitest'
import { useCommandLine, type HaltedCommand, useHaltedCommands } from '../../../test/support/command-line.ts'
import { makeEvents } from '../../../test/support/outbox-rows.ts'
import { useProcesses } from '../../../test/support/processes.ts'

const processes = useProcesses()
const commandLine = useCommandLine('outbox', 'replay')
const { db, call: replay } = commandLine
const haltedAt = useHaltedCommands(processes, commandLine, 'leasehold.outbox')
beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.outbox, leasehold.audit restart identity' })
})

async function statuses(): Promise<Record<string, number>> {
  const { rows } = await db.query<{ status: string; count: number }>({
    text: 'select status, count(*)::int as count from leasehold.outbox group by status',
  })
  return Object.fromEntries(rows.map(({ status, count }) => [status, count]))
}

interface Entry {
  readonly principal: string
  readonly details: Readonly<Record<string, unknown>> & {
    readonly changeId: string
    readonly changed: number
  }
}

async function audit(): Promise<Entry[]> {
  const text = 'select principal, details from leasehold.audit order by id'
  return (await db.query<Entry>({ text })).rows
}

const REASON = ['--reason', 'the broker is back']

describe('by id', () => {
  it('a replay by id does not ask, and says which events were not replayed and why', async () => {
    await makeEvents(db, 2, { status: 'DEAD' })
    await makeEvents(db, 1)
    const { code, stdout } = await replay(['1', '3', '99', ...REASON])
    expect(code).toBe(1)
    expect(stdout).toMatch(/^Replayed 1 event\. It is recorded in the audit as [0-9a-f-]{36}\.\n/)
    expect(stdout).toContain(
      '\n3 was not replayed: it is PENDING, and will be published anyway; `leasehold outbox retry` publishes it now.\n',
    )
    expect(stdout).toContain('\n99 was not replayed: there is no such event.\n')
    expect(await statuses()).toEqual({ PENDING: 2, DEAD: 1 })
    expect(await audit()).toMatchObject([
      { principal: 'the account', details: { reason: REASON[1], changed: 1 } },
    ])
  })

  it('--json prints one document with stable names', async () => {
    await makeEvents(db, 1, { status: 'PUBLISHED' })
    const { code, stdout } = await replay(['1', '--json', '--principal', 'ada', ...REASON])
    expect(code).toBe(0)
    expect(JSON.parse(stdout)).toEqual({
      dryRun: false,
      matched: 1,
      changed: 1,
      changedBefore: 0,
      counts: { published: 1, dead: 0 },
      finished: true,
      changeId: expect.stringMatching(/^[0-9a-f-]{36}$/),
      firstId: '1',
      lastId: '1',
      lastDueAt: expect.stringMatching(/^\d{4}-/),
      skipped: [],
    })
    expect(await audit()).toMatchObject([{ principal: 'ada' }])
  })
})

describe('by filter', () => {
  beforeEach(async () => {
    await makeEvents(db, 1_500, { status: 'DEAD', error: 'timeout' })
    await makeEvents(db, 10, { status: 'PUBLISHED' })
  })

  it('--dry-run counts, needs no reason and changes nothing', async () => {
    const { code, stdout } = await replay(['--type', 'order.paid', '--dry-run'])
    expect(code).toBe(0)
    expect(stdout).toBe('Would replay 1,510 events (1,500 dead, 10 published). Nothing was changed.\n')
    expect(await statuses()).toEqual({ DEAD: 1_500, PUBLISHED: 10 })
  })

  it('a replay by filter asks the person at the terminal, with the number; only yes means yes', async () => {
    const args = ['--status', 'dead', ...REASON]
    const no = await replay(args, { answer: '' })
    expect(no).toMatchObject({ code: 1, stdout: '', stderr: 'Nothing was changed.\n' })
    expect(no.asked).toEqual(['Replay 1,500 dead events? [y/N] '])
    expect(await statuses()).toEqual({ DEAD: 1_500, PUBLISHED: 10 })
    const yes = await replay(args, { answer: 'y' })
    expect(yes.code).toBe(0)
    expect(yes.stdout).toMatch(/^Replayed 1,500 events\./)
    expect(yes.stderr).toBe('\r1,000 of 1,500\r1,500 of 1,500\n')
    expect(await statuses()).toEqual({ PENDING: 1_500, PUBLISHED: 10 })
  })

  it('--rate and --limit are observed, and the time of the last event is printed', async () => {
    const { code, stdout } = await replay([
      '--error',
      'TIMEOUT',
      '--rate',
      '0.5',
      '--limit',
      '10',
      '--yes',
      ...REASON,
    ])
    expect(code).toBe(0)
    expect(stdout).toMatch(
      /^Replayed 10 events\. The last is due in \d+ s, at \d{4}-.*Z\. It is recorded in the audit/,
    )
    expect(await statuses()).toEqual({ DEAD: 1_490, PENDING: 10, PUBLISHED: 10 })
  })

  it('nothing that matches is no failure', async () => {
    const { code, stdout } = await replay(['--type', 'nothing', '--yes', ...REASON])
    expect({ code, stdout }).toEqual({ code: 0, stdout: 'No event was replayed: none matches.\n' })
    expect(await audit()).toEqual([])
  })
})

it.each([
  [['--status', 'dead', '--yes'], /--reason is missing/],
  [['--status', 'dead', ...REASON], /--yes is missing: .*nobody is at this terminal/],
  [REASON, /say which events/],
  [['12x', ...REASON], /"12x" is not an id: give the number of one of the events, or an event id/],
  [['--status', 'pending', '--yes', ...REASON], /status is "PENDING"\. Only PUBLISHED and DEAD/],
  [['1', '--rate', '0', ...REASON], /--rate is "0": give the events per second, above 0/],
  [['1', '--limit', '1.5', ...REASON], /--limit is "1\.5"/],
  [['1', '--reason', '  '], /--reason is " {2}"/],
  [['1', '--resume', '0190b3a0-0000-7000-8000-000000000001'], /--resume continues a change as it was begun/],
])('the arguments %j are refused as wrong usage', async (args, message) => {
  await makeEvents(db, 1, { status: 'DEAD' })
  const { code, stderr, stdout } = await replay(args)
  expect({ code, stdout }).toEqual({ code: 2, stdout: '' })
  expect(stderr).toMatch(message)
  expect(await statuses()).toEqual({ DEAD: 1 })
})

describe('a replay that is ended half way', () => {
  const args = ['--status', 'dead', '--yes', ...REASON]

  async function halted(id: number): Promise<HaltedCommand> {
    return haltedAt(['outbox', 'replay', ...args, '--rate', '1000'], id)
  }

  beforeEach(async () => {
    await makeEvents(db, 10_000, { status: 'DEAD', key: `'key ' || n % 50` })
  })

  it('after a kill, what was committed stays, with its audit entries; a second replay changes the rest, and nothing twice', async () => {
    const { process, letGoOfKilled } = await halted(5_500)
    expect(await process.kill('SIGKILL')).toEqual({ code: null, signal: 'SIGKILL' })
    await letGoOfKilled()
    expect(await statuses()).toEqual({ PENDING: 5_000, DEAD: 5_000 })
    expect((await audit()).at(-1)?.details).toMatchObject({
      changed: 5_000,
      lastId: '5000',
      finishedAtSeconds: null,
    })
    // A relay has published what was replayed, before the second replay.
    await db.query({
      text: `update leasehold.outbox set status = 'CLAIMED', claimed_at = now(), claimed_by = 'x',
  locked_until = now(), lock_token = lock_token + 1, ordering_key = null where id <= 100`,
    })
    await db.query({
      text: `update leasehold.outbox set status = 'PUBLISHED', published_at = now(), claimed_at = null,
  claimed_by = null, locked_until = null where id <= 100`,
    })
    const second = await replay(args)
    expect(second.stdout).toMatch(/^Replayed 5,000 events\./)
    expect(await statuses()).toEqual({ PENDING: 9_900, PUBLISHED: 100 })
    const replays = new Map((await audit()).map(({ details }) => [details.changeId, details.changed]))
    expect([...replays.values()]).toEqual([5_000, 5_000])
  })

  it('a replay that is killed and resumed is the same replay, and no event is replayed twice', async () => {
    const { process, letGoOfKilled } = await halted(2_500)
    await process.kill('SIGKILL')
    await letGoOfKilled()
    const [first] = await audit()
    const resumed = await replay(['--resume', first?.details.changeId ?? ''])
    expect(resumed.code).toBe(0)
    expect(resumed.stdout).toMatch(/^Replayed 8,000 events, after 2,000 before\. The last is due in \d+ s/)
    expect(await statuses()).toEqual({ PENDING: 10_000 })
    expect(new Set((await audit()).map(({ details }) => details.changeId)).size).toBe(1)
    expect((await replay(['--resume', first?.details.changeId ?? ''])).stderr).toMatch(/was finished at/)
    expect((await replay(['--resume', 'x'])).stderr).toMatch(/resume is "x"\. No replay has this id/)
  })

  it('the database ends its session: what was committed stays, and the error says how to continue', async () => {
    const { process, letGo, endSession } = await halted(1_500)
    await endSession()
    expect(await process.exited).toEqual({ code: 1, signal: null })
    await letGo()
    const { stdout, stderr } = process.output()
    expect(stdout).toBe('')
    expect(stderr).toContain('1,000 of 10,000 events were replayed; the others are unchanged.')
    expect(stderr).toContain('DATABASE_UNAVAILABLE')
    const [, id = ''] = /outbox replay --resume (\S+)/.exec(stderr) ?? []
    expect((await replay(['--resume', id])).code).toBe(0)
    expect(await statuses()).toEqual({ PENDING: 10_000 })
  })

  it('a replay that is told to stop finishes its batch and says how to continue', async () => {
    const { process, letGo } = await halted(3_500)
    const exit = process.kill('SIGINT')
    // The batch that waits for the lock is the one that is finished: it needs several more answers of the database.
    await letGo()
    expect(await exit).toEqual({ code: 1, signal: null })
    const { stdout } = process.output()
    expect(stdout).toMatch(/^Stopped\. .*4,000 of 10,000 events were replayed; the others are unchanged\./)
    const [, id = ''] = /outbox replay --resume (\S+)\n$/.exec(stdout) ?? []
    expect((await replay(['--resume', id])).stdout).toMatch(/^Replayed 6,000 events, after 4,000 before/)
    expect(await statuses()).toEqual({ PENDING: 10_000 })
  })
})
