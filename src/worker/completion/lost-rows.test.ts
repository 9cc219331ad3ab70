import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { insertJobs, type Job, jobStates, WORK_DDL, WORK_TABLE } from '../../../test/support/work-table.ts'
import { systemClock } from '../../clock.ts'
import { LeaseholdError } from '../../errors.ts'
import { leaseTable, openLeaseStore } from '../../lease/index.ts'
import type { Lease } from '../../lease/lease.ts'
import { openDatabase } from '../../postgres/database.ts'
import { SuspectSlot } from '../claiming/suspect-slot.ts'
import { SILENT_LOG } from '../context.ts'
import { Events } from '../events.ts'
import { HeldRows } from '../heartbeat/held-rows.ts'
import { workerSettings } from '../settings.ts'
import { Worker } from '../worker.ts'

useQuietProcess()
const { url } = useDatabase()
const db = openDatabase({ url })

beforeAll(async () => db.query({ text: WORK_DDL }))
beforeEach(async () => db.query({ text: 'truncate public.jobs' }))
afterAll(async () => db.close())

it('D10: rows of a claim whose answer was lost are given back by their owner and lose no attempt', async () => {
  await insertJobs(db, 3)
  const store = await openLeaseStore<Job>(db, leaseTable(WORK_TABLE), { owner: 'w' })
  const lost: Lease[] = []
  const events = new Events()
  const worker = new Worker<Job>({
    name: 'jobs',
    store: {
      ...store,
      cycle(options) {
        const cycle = store.cycle(options)
        return {
          ...cycle,
          async send(request) {
            const answer = await cycle.send(request)
            const { claimed = [] } = answer.claim ?? {}
            if (lost.length > 0 || claimed.length === 0) return answer
            lost.push(...claimed.map(({ lease }) => lease))
            // The connection broke after the server had committed.
            await db.query({ text: "update public.jobs set locked_until = now() - interval '1 second'" })
            throw new LeaseholdError('DATABASE_UNAVAILABLE', 'The connection is broken.')
          },
        }
      },
    },
    handle: async () => Promise.resolve(),
    settings: workerSettings({ pollMs: 50, claimLoops: 1 }),
    suspects: new SuspectSlot(),
    findForgotten: async () => Promise.resolve(lost),
    events,
    log: SILENT_LOG,
    clock: systemClock,
    random: Math.random,
    held: new HeldRows(),
    hold: () => undefined,
    isWoken: () => false,
  })
  const released = events.next('released')
  worker.start()
  expect(new Set((await released).ids)).toEqual(new Set(lost.map(({ id }) => id)))
  await worker.idle()
  expect(await jobStates(db)).toEqual({ DONE: 3 })
  const { rows } = await db.query({ text: 'select distinct attempts, expiries from public.jobs' })
  expect(rows).toEqual([{ attempts: 0, expiries: 0 }])
  expect(await worker.stop()).toMatchObject({ clean: true })
})
