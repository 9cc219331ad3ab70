import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { door, useWorkers } from '../../../test/support/running-worker.ts'
import { insertJobs, jobs, WORK_DDL } from '../../../test/support/work-table.ts'
import { openDatabase } from '../../postgres/database.ts'
import { listWorkers, type WorkerRow } from './registry.ts'

useQuietProcess()
const { url } = useDatabase()
const run = useWorkers(url)
const db = openDatabase({ url })
const BOUND = { timeout: 120_000, interval: 20 }

beforeAll(async () => {
  await db.query({ text: WORK_DDL })
})
beforeEach(async () => {
  await db.query({ text: 'truncate public.jobs, public.runs, leasehold.workers restart identity' })
})
afterAll(async () => db.close())

async function only(): Promise<WorkerRow | undefined> {
  return (await listWorkers(db, 'leasehold'))[0]
}

describe('a process that stops while its handlers still run', () => {
  it.each([
    ['with LISTEN, in a thread', { heartbeat: 'thread', listen: true }, ['reaper']],
    ['with LISTEN', { listen: true }, ['reaper']],
    ['without LISTEN', { listen: false }, ['reaper']],
    ['without a reaper', { reaper: false }, []],
  ] as const)(
    'is shown in the registry with no role but the reaper’s: %s',
    async (_, options, remainingRoles) => {
      const roles = ['jobs', ...remainingRoles]
      await insertJobs(db, 1)
      const [begun, held] = [door(), door()]
      const handle = async (): Promise<void> => {
        begun.open()
        await held.opened
      }
      const settings = { shutdownTimeoutMs: 30_000 }
      const { runtime } = await run({ handle, settings }, { presenceMs: 50, ...options })
      await begun.opened
      // By then its presence was updated while it processes a row.
      await expect.poll(async () => only(), BOUND).toMatchObject({ id: runtime.id, roles, inFlight: 1 })

      const stopped = runtime.stop()
      try {
        await expect.poll(async () => (await only())?.roles, BOUND).toEqual(remainingRoles)
        expect(await only()).toMatchObject({ state: 'alive', stoppedAt: null, inFlight: 1 })
        expect(runtime.inFlight).toBe(1)
        expect(await jobs(db)).toMatchObject([{ status: 'CLAIMED', claimed_by: runtime.id }])
      } finally {
        held.open()
      }
      expect(await stopped).toEqual({ clean: true })
      expect(await jobs(db)).toMatchObject([{ status: 'DONE' }])
      expect(await only()).toMatchObject({ state: 'stopped', roles: remainingRoles })
    },
  )
})

describe('a process that stops and leaves rows behind', () => {
  it.each([
    ['is not shown as stopped, so that it is found missing', { listen: true }, 'alive'],
    [
      'is shown as stopped where its session is hidden, since nobody would miss it',
      { listen: false },
      'stopped',
    ],
  ] as const)('%s', async (_, options, state) => {
    await insertJobs(db, 1)
    const [begun, held] = [door(), door()]
    const handle = async (): Promise<void> => {
      begun.open()
      await held.opened
    }
    const settings = { shutdownTimeoutMs: 10 }
    const { runtime } = await run({ handle, settings }, { presenceMs: 50, reaper: false, ...options })
    await begun.opened
    expect(await runtime.stop()).toEqual({ clean: false })
    expect(await only()).toMatchObject({ id: runtime.id, state })
    held.open()
  })
})
