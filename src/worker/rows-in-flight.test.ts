import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { door } from '../../test/support/running-worker.ts'
import { insertJobs, type Job, jobStates, WORK_DDL, WORK_TABLE } from '../../test/support/work-table.ts'
import { systemClock } from '../clock.ts'
import { type Ended, leaseTable, type LeaseStore, openLeaseStore } from '../lease/index.ts'
import { openDatabase } from '../postgres/database.ts'
import { SuspectSlot } from './claiming/suspect-slot.ts'
import { SILENT_LOG } from './context.ts'
import { type AnyEvent, Events } from './events.ts'
import { HeldRows } from './heartbeat/held-rows.ts'
import { workerSettings } from './settings.ts'
import { Worker } from './worker.ts'

useQuietProcess()
const { url } = useDatabase()
const db = openDatabase({ url })

beforeAll(async () => {
  await db.query({ text: WORK_DDL })
})
beforeEach(async () => {
  await db.query({ text: 'truncate public.jobs restart identity' })
})
afterAll(async () => db.close())

/** A worker over this store, with what it has told. */
function workerOver(store: LeaseStore<Job>) {
  const events = new Events()
  const held = new HeldRows()
  const told: AnyEvent[] = []
  events.onAny((event) => told.push(event))
  const worker = new Worker<Job>({
    name: 'jobs',
    store,
    handle: async () => Promise.resolve(),
    settings: workerSettings({ pollMs: 50, claimLoops: 1 }),
    suspects: new SuspectSlot(),
    findForgotten: async () => Promise.resolve([]),
    events,
    log: SILENT_LOG,
    clock: systemClock,
    random: Math.random,
    held,
    hold: () => undefined,
    isWoken: () => false,
  })
  const uncertain = (): string[] =>
    told.flatMap((event) => (event.type === 'fencedOff' && event.isUncertain ? [event.id] : []))
  /** The ids of the rows that a heartbeat renews which starts now. */
  const renewed = (): string[] =>
    new HeldRows(held.buffer)
      .claimedBefore(Number.POSITIVE_INFINITY, () => undefined)
      .map(({ address }) => address)
  return { worker, events, uncertain, renewed }
}

type Answer = Awaited<ReturnType<ReturnType<LeaseStore<Job>['cycle']>['send']>>

/** The store, with something to do in place of sending settlements. */
function settling(
  store: LeaseStore<Job>,
  send: (write: () => Promise<Answer>) => Promise<Answer>,
): LeaseStore<Job> {
  return {
    ...store,
    cycle(options) {
      const cycle = store.cycle(options)
      return {
        ...cycle,
        send: async (request) => {
          const write = async (): Promise<Answer> => cycle.send(request)
          return request.settlements.length === 0 ? write() : send(write)
        },
      }
    },
  }
}

/** The store, with something to do before or after the first settlement; the worker then loses its answer. */
async function losesFirstAnswer(
  settle: (store: LeaseStore<Job>, write: () => Promise<unknown>) => Promise<unknown>,
): Promise<LeaseStore<Job>> {
  const store = await openLeaseStore<Job>(db, leaseTable(WORK_TABLE), { owner: 'w' })
  let isFirst = true
  return settling(store, async (write) => {
    if (!isFirst) return write()
    isFirst = false
    await settle(store, write)
    throw Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' })
  })
}

it('LIFE-18: rows whose settlement got no answer are reported as fenced off, and as uncertain, since it may have been written', async () => {
  const ids = await insertJobs(db, 3)
  const { worker, uncertain } = workerOver(await losesFirstAnswer(async (_, write) => write()))
  worker.start()
  await expect.poll(() => uncertain().toSorted()).toEqual(ids)
  expect(await worker.stop()).toEqual({ clean: true })
  expect(await jobStates(db)).toEqual({ DONE: 3 })
})

it('LIFE-18: a row that was locked, and whose second settlement got no answer, is reported as uncertain too', async () => {
  const ids = await insertJobs(db, 3)
  const store = await openLeaseStore<Job>(db, leaseTable(WORK_TABLE), { owner: 'w' })
  const unanswered: string[] = []
  /** All rows are settled; of the first settlement, one is said to be busy, and its second settlement unanswered. */
  function losingOne(answer: Ended): Ended {
    const [lease, ...ended] = answer.ended
    if (lease === undefined || unanswered.length > 0) return answer
    unanswered.push(lease.id)
    const error = Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' })
    return { ...answer, ended, busy: [lease], unanswered: { leases: [lease], error } }
  }
  const losing = settling(store, async (write) => {
    const answer = await write()
    return { ...answer, ended: answer.ended.map(losingOne) }
  })
  const { worker, uncertain } = workerOver(losing)
  worker.start()
  await expect.poll(uncertain).toHaveLength(1)
  expect(uncertain()).toEqual(unanswered)
  expect(ids).toEqual(expect.arrayContaining(unanswered))
  expect(await worker.stop()).toEqual({ clean: true })
  expect(await jobStates(db)).toEqual({ DONE: 3 })
})

it('RULE-020-003: rows whose settlement got no answer and that a reaper took back are reported as fenced off, and as uncertain', async () => {
  const ids = await insertJobs(db, 1)
  const store = await losesFirstAnswer(async (real) => real.reap({ ownedBy: 'w' }))
  const { worker, uncertain } = workerOver(store)
  worker.start()
  await expect.poll(uncertain).toEqual(ids)
  worker.pause()
  await worker.stop()
})

it('RULE-020-010: a heartbeat that restarts renews also the rows that wait to be settled', async () => {
  const ids = await insertJobs(db, 2)
  const [sent, answer] = [door(), door()]
  const store = await openLeaseStore<Job>(db, leaseTable(WORK_TABLE), { owner: 'w' })
  const waiting = settling(store, async (write) => {
    sent.open()
    await answer.opened
    return write()
  })
  const { worker, events, renewed } = workerOver(waiting)
  worker.start()
  await sent.opened
  expect(renewed().toSorted()).toEqual(ids)
  const settled = events.next('settled')
  answer.open()
  await settled
  expect(renewed()).toEqual([])
  await worker.stop()
})
