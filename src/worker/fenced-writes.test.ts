/** What a worker writes for a row, and what it does not: without a database, by the decisions alone. */
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { type Ended, type Lease, leaseTable } from '../lease/index.ts'
import { SuspectSlot } from './claiming/suspect-slot.ts'
import { Completion } from './completion/completion.ts'
import { dead, done, type Outcome, PermanentError, retry, SaturatedError } from './completion/outcome.ts'
import { type FinishedBatch, FinishedRows } from './completion/finished-rows.ts'
import { Settler } from './completion/settle.ts'
import { type AnyEvent, Events } from './events.ts'
import { HeldRows } from './heartbeat/held-rows.ts'
import { LeaseWatch } from './heartbeat/lease-watch.ts'
import { type RowInFlight, RowsInFlight, signalOf } from './rows-in-flight.ts'
import { workerSettings } from './settings.ts'
import { Slots } from './slots/slots.ts'
import { Signal } from './waiting.ts'

interface Row {
  readonly id: string
}

const LEASE_MS = 10_000
/** The lease less its margin of 500 ms. */
const TRUSTED_MS = 9_500

const TABLE = leaseTable({
  table: 'jobs',
  id: 'id',
  lease: { owner: 'owner', until: 'until' },
  claimable: 'true',
  order: ['id'],
  onExpiry: 'claimable',
  attempts: { column: 'attempts', max: 3 },
  outcomes: {
    done: { set: {} },
    retry: { set: {}, args: { error: 'text', delay_ms: 'float8' } },
    dead: { set: {}, args: { error: 'text' } },
    cautious: { set: {}, when: 'true', otherwise: 'done' },
  },
})

beforeEach(() => {
  vi.useFakeTimers()
})
afterEach(() => {
  vi.useRealTimers()
})

function parts(table = TABLE) {
  const clock = { monotonicNow: () => performance.now(), now: () => Date.now() }
  const settings = () => workerSettings({ leaseMs: LEASE_MS, concurrency: 2, prefetch: 4 })
  const events = new Events()
  const told: AnyEvent[] = []
  events.onAny((event) => told.push(event))
  const held = new HeldRows()
  const addresses: string[] = []
  const inFlight = new RowsInFlight<Row>({
    store: { table, addressOf: ({ id }) => id },
    events,
    held,
    hold: (_, address) => addresses.push(address),
    suspects: new SuspectSlot(),
    giveBack: () => undefined,
  })
  const sent: string[] = []
  const finished = new FinishedRows<Row>()
  /** What the database answers for each row; without an entry, it is settled. */
  const answers = new Map<string, 'fencedOff' | 'busy' | 'refused'>()
  const away = { is: false }
  const reaps: unknown[] = []
  const reap: { with: () => Promise<readonly object[]> } = { with: async () => Promise.resolve([]) }
  async function end(verb: string, leases: readonly Lease[]) {
    if (away.is) return Promise.reject(new Error('away'))
    sent.push(`${verb} ${leases.map(({ id }) => id).join(' ')}`)
    const of = (answer?: string) => leases.filter(({ id }) => answers.get(id) === answer)
    const refused = of('refused').map((lease) => ({ lease, error: new Error('a constraint') }))
    return Promise.resolve({ ended: of(), fencedOff: of('fencedOff'), busy: of('busy'), refused })
  }
  const store = {
    owner: 'w',
    table,
    settle: async (outcome: string, leases: readonly Lease[]) => end(outcome, leases),
    release: async (leases: readonly Lease[]) => end('release', leases),
    reap: async (request: unknown) => {
      reaps.push(request)
      // Of what is reaped, only what the watch reads.
      return (await reap.with()) as never
    },
  }
  const expected: number[] = []
  const timing = { expect: (at: number) => void expected.push(at) }
  const settler = new Settler<Row>({ store, clock, events, inFlight, finished, timing, signal: new Signal() })
  const cycle = {
    isStalled: false,
    settle: (row: RowInFlight<Row>, { name, args }: Outcome) =>
      void sent.push(
        `queue ${name} ${row.id}${args['delay_ms'] === undefined ? '' : ` ${JSON.stringify(args['delay_ms'])}`}`,
      ),
    release: (rows: readonly RowInFlight<Row>[], delayMs = 0) => {
      for (const { id } of rows) sent.push(`release ${id} ${delayMs}`)
    },
    releaseFor: () => undefined,
    notify: () => undefined,
    keysFreed: (leases: readonly Lease[]) => void sent.push(`freed ${leases.map(({ id }) => id).join(' ')}`),
  }
  const stopping = { is: false }
  const gate = {
    open: true,
    shut: (reason: string, forMs?: number, error?: unknown) =>
      void sent.push(`pause ${reason} ${forMs} after ${String(error instanceof Error)}`),
    isShutFor: () => stopping.is,
  }
  const completion = new Completion<Row>({ store, clock, random: () => 0, events, inFlight, cycle, gate })
  const slots = new Slots<Row>({
    table: 'public.jobs',
    clock,
    events,
    settings,
    limits: undefined,
    gate,
    inFlight,
    cycle,
    completion,
    run: async () => new Promise<void>(() => {}),
  })
  const watch = new LeaseWatch<Row>({
    table: 'public.jobs',
    store,
    clock,
    events,
    settings,
    gate,
    inFlight,
    slots,
    cycle,
  })
  return {
    held,
    inFlight,
    addresses,
    /** The ids of the rows that the thread of the heartbeat renews. */
    renewed: () =>
      new HeldRows(held.buffer)
        .claimedBefore(Number.POSITIVE_INFINITY, () => undefined)
        .map(({ address }) => address),
    sent,
    answers,
    away,
    reaps,
    reap,
    settler,
    completion,
    slots,
    watch,
    expected,
    stopping,
    finished,
    /** The rows of a claim that is sent at this moment. */
    claim<const Ids extends readonly string[]>(...ids: Ids): { readonly [I in keyof Ids]: RowInFlight<Row> } {
      const at = performance.now()
      const claimed = ids.map((id) => ({
        lease: { id, owner: 'w', token: 1n, until: new Date(Date.now() + LEASE_MS) },
        row: { id },
      }))
      const facts = { more: false, leaseMs: LEASE_MS, trustedUntil: at + TRUSTED_MS }
      // One row for each id.
      return inFlight.add({ claimed, ...facts }, at) as never
    },
    batch(rows: readonly RowInFlight<Row>[], outcome = 'done'): FinishedBatch<Row> {
      return { outcome, rows, args: undefined }
    },
    /** What the database answers to the settlement of these rows, at this moment. */
    async answer({ outcome, rows }: FinishedBatch<Row>): Promise<Ended> {
      return end(
        outcome,
        rows.map(({ lease }) => lease),
      )
    },
    told: (type: AnyEvent['type']) =>
      told
        .flatMap((event) =>
          event.type === type ? ['ids' in event ? event.ids : 'id' in event ? event.id : ''] : [],
        )
        .flat(),
    errors: () =>
      told.flatMap((event) =>
        'error' in event && event.error instanceof Error ? [event.error.message] : [],
      ),
    outcomes: () => told.flatMap((event) => (event.type === 'settled' ? [event.outcome] : [])),
    reasons: () => told.flatMap((event) => (event.type === 'lost' ? [`${event.id} ${event.reason}`] : [])),
  }
}

describe('when a handler has returned', () => {
  it('D8: its outcome is settled while the lease is trusted, and not from the deadline on', async () => {
    const tested = parts()
    const [first, second] = tested.claim('1', '2')
    await vi.advanceTimersByTimeAsync(TRUSTED_MS - 1)
    tested.completion.handlerEnded(first, { ended: 'returned', outcome: undefined })
    await vi.advanceTimersByTimeAsync(1)
    tested.completion.handlerEnded(second, { ended: 'returned', outcome: undefined })
    expect(tested.sent).toEqual(['queue done 1'])
    expect(tested.told('fencedOff')).toEqual(['2'])
  })

  it('RULE-020-003: nothing is written for a row that was lost, whatever its handler did', () => {
    const tested = parts()
    const rows = tested.claim('1', '2', '3')
    for (const row of rows) tested.inFlight.lose(row, 'taken')
    tested.completion.handlerEnded(rows[0], { ended: 'returned', outcome: done() })
    tested.completion.handlerEnded(rows[1], { ended: 'threw', error: new Error('no') })
    tested.completion.handlerEnded(rows[2], { ended: 'threw', error: new SaturatedError(50) })
    expect(tested.sent).toEqual([])
    expect(tested.told('fencedOff')).toEqual(['1', '2', '3'])
    expect(tested.told('failed')).toEqual([])
  })

  it('an error is a retry, a permanent one makes the row dead, and both are reported', () => {
    const tested = parts()
    const [first, second, third] = tested.claim('1', '2', '3')
    tested.completion.handlerEnded(first, { ended: 'threw', error: new Error('no') })
    tested.completion.handlerEnded(second, { ended: 'threw', error: new PermanentError('gone') })
    tested.completion.handlerEnded(third, { ended: 'returned', outcome: { name: 'unknown', args: {} } })
    expect(tested.sent).toEqual(['queue retry 1 1000', 'queue dead 2', 'queue retry 3 1000'])
    expect(tested.told('failed')).toEqual(['1', '2', '3'])
  })

  it('RULE-020-042, D9: a saturated target releases the row for that time, and claiming pauses', () => {
    const tested = parts()
    tested.completion.handlerEnded(tested.claim('1')[0], { ended: 'threw', error: new SaturatedError(50) })
    expect(tested.sent).toEqual(['pause saturated 50 after true', 'release 1 50'])
  })

  it('D9: only a handler whose signal fired because the worker stops is retried at once', () => {
    const tested = parts()
    const [told, other] = tested.claim('1', '2')
    tested.stopping.is = true
    signalOf(told)
    told.abort?.abort()
    tested.completion.handlerEnded(told, { ended: 'threw', error: new Error('aborted') })
    tested.completion.handlerEnded(other, { ended: 'threw', error: new Error('no') })
    expect(tested.sent).toEqual(['queue retry 1 0', 'queue retry 2 1000'])
  })

  it('what it settled in its own transaction is not settled once more, unless it threw after that', () => {
    const tested = parts()
    const [agreed, threw] = tested.claim('1', '2')
    agreed.settledAs = done()
    threw.settledAs = done()
    tested.completion.handlerEnded(agreed, { ended: 'returned', outcome: undefined })
    tested.completion.handlerEnded(threw, { ended: 'threw', error: new Error('late') })
    expect(tested.told('settled')).toEqual(['1'])
    expect(tested.sent).toEqual(['queue retry 2 1000'])
  })

  it('LIFE-13: after a settlement in a handler’s own transaction, the key of the row can be claimed; a failure is reported', () => {
    const tested = parts({ ...TABLE, ordering: { key: 'key', unfinished: 'true' } })
    const [good, bad] = tested.claim('1', '2')
    good.settledAs = done()
    bad.settledAs = dead('no')
    tested.completion.handlerEnded(good, { ended: 'returned', outcome: undefined })
    tested.completion.handlerEnded(bad, { ended: 'returned', outcome: undefined })
    expect(tested.sent).toEqual(['freed 1', 'freed 2'])
    expect(tested.told('failed')).toEqual(['2'])
  })

  it('an error of our own at the end of a handler is reported, and the row is left to the reaper', () => {
    const tested = parts()
    tested.completion.endedUnexpectedly(tested.claim('1')[0], new Error('a bug'))
    expect(tested.told('trouble')).toHaveLength(1)
    expect(tested.renewed()).toEqual([])
    expect(tested.sent).toEqual([])
  })

  it('an outcome that the table does not declare fails the row with the reason', () => {
    const tested = parts()
    tested.completion.handlerEnded(tested.claim('1')[0], {
      ended: 'returned',
      outcome: { name: 'unknown', args: {} },
    })
    expect(tested.errors()).toEqual([expect.stringContaining('which the table does not declare')])
  })
})

describe('a settlement', () => {
  it('D8: is sent without the rows whose lease is no longer trusted, which are reported as fenced off', async () => {
    const tested = parts()
    const [first, second] = tested.claim('1', '2')
    await vi.advanceTimersByTimeAsync(5_000)
    const [late] = tested.claim('3')
    const all = [tested.batch([first, late]), tested.batch([second], 'dead')]
    const trusted = () => tested.settler.trusted(all, performance.now())
    expect(trusted()).toEqual(all)
    await vi.advanceTimersByTimeAsync(TRUSTED_MS - 5_000)
    expect(trusted()).toEqual([tested.batch([late])])
    expect(tested.told('fencedOff')).toEqual(['1', '2'])
  })

  it('is answered row by row: settled, fenced off, refused, or locked and sent once more', async () => {
    const tested = parts()
    const rows = tested.claim('1', '2', '3', '4')
    tested.answers.set('2', 'fencedOff').set('3', 'refused').set('4', 'busy')
    const batch = tested.batch(rows)
    await tested.settler.answered(batch, await tested.answer(batch), performance.now())
    expect(tested.told('settled')).toEqual(['1'])
    expect(tested.told('fencedOff')).toEqual(['2'])
    expect(tested.told('dataError')).toEqual(['3'])
    expect(tested.renewed()).toEqual(['4'])
    expect([tested.settler.pending, tested.finished.size]).toEqual([1, 0])
    await vi.advanceTimersByTimeAsync(200)
    expect([tested.settler.pending, tested.finished.size]).toEqual([0, 1])
  })

  it('that is fenced off although the handler settled the row itself was written by the handler, while the lease is trusted', async () => {
    const tested = parts()
    const rows = tested.claim('1', '2')
    for (const row of rows) tested.answers.set(row.id, 'fencedOff')
    rows[0].settledAs = dead('no')
    const batch = tested.batch(rows, 'retry')
    await tested.settler.answered(batch, await tested.answer(batch), performance.now())
    expect(tested.told('settled')).toEqual(['1'])
    expect(tested.told('fencedOff')).toEqual(['2'])
    const [late] = tested.claim('3')
    late.settledAs = done()
    tested.answers.set('3', 'fencedOff')
    await vi.advanceTimersByTimeAsync(TRUSTED_MS)
    const last = tested.batch([late], 'retry')
    await tested.settler.answered(last, await tested.answer(last), performance.now())
    expect(tested.told('fencedOff')).toEqual(['2', '3'])
  })

  it('whose condition no longer holds is settled as its outcome says for this case, and the others as they are', async () => {
    const tested = parts()
    const rows = tested.claim('1', '2', '3')
    tested.answers.set('2', 'fencedOff').set('3', 'fencedOff')
    const batch = tested.batch(rows, 'cautious')
    const answer = await tested.answer(batch)
    tested.answers.delete('2')
    await tested.settler.answered(batch, answer, performance.now())
    expect(tested.sent).toEqual(['cautious 1 2 3', 'done 2 3'])
    expect(tested.told('settled')).toEqual(['2', '1'])
    expect(tested.told('fencedOff')).toEqual(['3'])
  })

  it('that succeeds is reported under its own outcome, also where the handler had rolled back another', async () => {
    const tested = parts()
    const [row] = tested.claim('1')
    row.settledAs = done()
    const batch = tested.batch([row], 'retry')
    await tested.settler.answered(batch, await tested.answer(batch), performance.now())
    expect(tested.outcomes()).toEqual(['retry'])
  })

  it('as a retry says when the next claim is worth it', async () => {
    const tested = parts()
    const batch = { ...tested.batch(tested.claim('1'), 'retry'), args: [retry({ delayMs: 700 }).args] }
    await tested.settler.answered(batch, await tested.answer(batch), performance.now())
    expect(tested.expected).toEqual([performance.now() + 700])
  })
})

describe('a database that does not answer', () => {
  it('leaves a released row to the reaper, and the second outcome of a settlement to the next attempt', async () => {
    const tested = parts()
    const [released, settled] = tested.claim('1', '2')
    const batch = tested.batch([settled], 'cautious')
    tested.answers.set('2', 'fencedOff')
    const answer = await tested.answer(batch)
    tested.away.is = true
    tested.settler.release([released], 0)
    await tested.settler.answered(batch, answer, performance.now())
    await vi.advanceTimersByTimeAsync(0)
    expect(tested.errors()).toEqual(['away', 'away'])
    expect(tested.told('fencedOff')).toEqual([])
    expect(tested.renewed()).toEqual([settled.id])
    expect(tested.settler.pending).toBe(1)
  })
})

describe('a release', () => {
  it('D9: is repeated for a row that is locked, and given up when the row is lost', async () => {
    // The pause between two attempts is not one of the timers that a test can advance.
    vi.useRealTimers()
    const tested = parts()
    tested.answers.set('2', 'busy').set('3', 'busy')
    const rows = tested.claim('1', '2', '3')
    tested.settler.release(rows, 0)
    expect(tested.settler.pending).toBe(3)
    await expect.poll(() => tested.sent).toContain('release 2 3')
    expect(tested.told('released')).toEqual(['1'])
    expect(tested.settler.pending).toBe(2)
    tested.answers.delete('2')
    tested.inFlight.lose(rows[2], 'taken')
    await expect.poll(() => tested.settler.pending).toBe(0)
    expect(tested.told('released')).toEqual(['1', '2'])
    expect(tested.renewed()).toEqual([])
  })
})

it('RULE-020-010: of rows whose ids do not fit into the memory that it shares, the heartbeat is told, also when it starts anew', () => {
  const tested = parts()
  const [long, dropped] = ['i'.repeat(129), 'ü']
  const [, , second] = tested.claim('1', long, dropped)
  expect(tested.addresses).toEqual([long, dropped])
  tested.inFlight.drop(second)
  tested.inFlight.holdAgain()
  expect(tested.addresses).toEqual([long, dropped, long])
  expect(tested.renewed()).toEqual(['1'])
})

describe('the watch over leases', () => {
  it('D8: a row whose lease was not renewed is lost at its deadline, and its handler is told; a renewed one is not', async () => {
    const tested = parts()
    const rows = tested.claim('1', '2')
    tested.slots.add(rows)
    tested.slots.fill()
    const signals = rows.map(signalOf)
    tested.watch.start()
    await vi.advanceTimersByTimeAsync(TRUSTED_MS - 200)
    expect(tested.reasons()).toEqual([])
    await vi.advanceTimersByTimeAsync(400)
    expect(tested.reasons()).toEqual(['1 untrusted', '2 untrusted'])
    expect(signals.map(({ aborted }) => aborted)).toEqual([true, true])
    await vi.advanceTimersByTimeAsync(1_000)
    expect(tested.reaps).toEqual([])
    tested.watch.close()
    expect(vi.getTimerCount()).toBe(0)
  })

  it('a row that waits for a slot is released after half a lease, and one that is lost is dropped', async () => {
    const tested = parts()
    const rows = tested.claim('1', '2', '3', '4')
    tested.slots.add(rows)
    tested.slots.fill()
    tested.watch.start()
    tested.watch.lost(rows[3], 'taken')
    expect(tested.reasons()).toEqual(['4 taken'])
    expect(tested.told('aborted')).toEqual([])
    await vi.advanceTimersByTimeAsync(LEASE_MS / 2)
    expect(tested.sent).toEqual([])
    await vi.advanceTimersByTimeAsync(500)
    expect(tested.sent).toEqual(['release 3 0'])
    tested.watch.close()
  })

  it('handlers that ignore the loss of their rows clog the slots, and what waits is released', () => {
    const tested = parts()
    const rows = tested.claim('1', '2', '3', '4', '5')
    tested.slots.add(rows)
    tested.slots.fill()
    for (const row of rows.slice(0, 3)) tested.watch.lost(row, 'taken')
    expect(tested.slots.isClogged).toBe(true)
    expect(tested.sent).toEqual(['release 5 0'])
    expect(tested.told('trouble')).toHaveLength(1)
  })

  it('all handlers can be told to stop, and lose nothing by that', () => {
    const tested = parts()
    const rows = tested.claim('1', '2')
    tested.slots.add(rows)
    tested.slots.fill()
    tested.watch.abortAll('stopping')
    expect(rows.map((row) => signalOf(row).aborted)).toEqual([true, true])
    expect(tested.told('aborted')).toEqual(['1', '2'])
    expect(tested.reasons()).toEqual([])
  })

  it.each([
    ['is reported, and not taken back twice', async () => Promise.resolve([{ id: '1', exhausted: true }])],
    ['fails if the database does, and is left to the reapers', async () => Promise.reject(new Error('away'))],
  ])('a row that is taken back because its handler hangs %s', async (what, reap) => {
    const tested = parts()
    tested.reap.with = reap
    const rows = tested.claim('1')
    tested.slots.add(rows)
    tested.slots.fill()
    tested.held.renewed(rows[0], performance.now() + 3 * LEASE_MS - 500)
    tested.watch.start()
    await vi.advanceTimersByTimeAsync(3 * LEASE_MS + 5_000)
    expect(tested.reaps).toHaveLength(1)
    const isReported = what.startsWith('is reported')
    expect(tested.told('reaped')).toEqual(isReported ? ['1'] : [])
    expect(tested.told('trouble')).toHaveLength(isReported ? 0 : 1)
    tested.watch.close()
  })

  it('a row is lost once, and the others stay', () => {
    const tested = parts()
    const [first, second] = tested.claim('1', '2')
    tested.slots.add([first, second])
    tested.slots.fill()
    tested.watch.lost(first, 'heartbeatFailed')
    tested.watch.lost(first, 'taken')
    tested.watch.lost({ index: second.index, generation: second.generation + 1 }, 'taken')
    expect(tested.reasons()).toEqual(['1 heartbeatFailed'])
    expect(tested.slots.abandoned).toBe(1)
  })

  it('a lease that the handler’s own transaction has ended is not lost by that', () => {
    const tested = parts()
    const rows = tested.claim('1', '2')
    tested.slots.add(rows)
    tested.slots.fill()
    for (const row of rows) row.settledAs = done()
    tested.watch.lost(rows[0], 'taken')
    tested.watch.lost(rows[0], 'untrusted')
    tested.watch.lost(rows[1], 'heartbeatFailed')
    expect(tested.reasons()).toEqual(['2 heartbeatFailed'])
  })

  it('RULE-020-051: a handler that runs for maxLeases loses its row as too long, and the process takes it back itself', async () => {
    const tested = parts()
    const rows = tested.claim('1')
    tested.slots.add(rows)
    tested.slots.fill()
    tested.watch.start()
    expect(tested.watch.takesBack).toEqual([])
    // As the last renewal of the heartbeat leaves it: the lease ends with the third.
    tested.held.renewed(rows[0], performance.now() + 3 * LEASE_MS - 500)
    await vi.advanceTimersByTimeAsync(2 * LEASE_MS - 1)
    expect(tested.watch.takesBack).toEqual([])
    await vi.advanceTimersByTimeAsync(1)
    expect(tested.watch.takesBack).toEqual(['1'])
    await vi.advanceTimersByTimeAsync(LEASE_MS - 300)
    expect(tested.reasons()).toEqual(['1 tooLong'])
    await vi.advanceTimersByTimeAsync(300)
    expect(tested.reaps[0]).toMatchObject({
      ids: ['1'],
      ownedBy: 'w',
      reason: 'the handler did not return within 3 leases of 10000 ms (maxLeases)',
    })
    await vi.advanceTimersByTimeAsync(5_000)
    // Not by owner once the lease is over: this process may have claimed the row anew.
    expect(tested.reaps).toHaveLength(5)
    expect(tested.reaps.at(-1)).not.toHaveProperty('ownedBy')
    expect(tested.watch.takesBack).toEqual([])
    tested.watch.close()
  })
})
