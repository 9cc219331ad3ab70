/** What is set by a profile, and which settings each kind of worker has unless something else is set. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { projectFile } from '../../test/support/project-files.ts'
import { useRuntimes } from '../../test/support/runtimes.ts'
import { SECRET_KEY } from '../../test/support/webhook-endpoints.ts'
import { WORK_DDL, WORK_TABLE } from '../../test/support/work-table.ts'
import { LEASE_MS, leaseTable, REAPER_INTERVAL_MS } from '../lease/index.ts'
import { relay } from '../outbox/index.ts'
import { stdoutPublisher } from '../outbox/publishers/stdout.ts'
import { openDatabase } from '../postgres/database.ts'
import { reconciler } from '../reconcile/index.ts'
import { createSync } from '../sync/index.ts'
import { dispatcher } from '../webhooks/index.ts'
import type { DeclaredSettings } from './settings.ts'

const { url } = useDatabase()
const start = useRuntimes(url)
const db = openDatabase({ url })
beforeAll(async () => void (await db.query({ text: WORK_DDL })))
afterAll(async () => db.close())

function jobs(settings?: DeclaredSettings) {
  const handle = async (): Promise<void> => Promise.resolve()
  return {
    name: 'jobs',
    table: leaseTable(WORK_TABLE),
    handle,
    ...(settings === undefined ? {} : { settings }),
  }
}

function sync(definitions: number) {
  const made = createSync()
  for (let n = 0; n < definitions; n += 1)
    made.define<number>(`d${n}`, { plan: () => [], syncChunk: async () => Promise.resolve({ rows: 0 }) })
  return made.runner()
}

it('RULE-020-041: ten rows at once unless their kind says otherwise: 256 deliveries, one batch of events, and four jobs and four chunks of each definition of sync', async () => {
  const { runtime } = await start([
    jobs(),
    relay({ publisher: stdoutPublisher({ maxBatch: 1 }) }),
    dispatcher({ secretKey: SECRET_KEY }),
    reconciler({
      name: 'reconcile',
      table: leaseTable({
        table: 'public.jobs',
        lease: { owner: 'claimed_by', until: 'locked_until', token: 'lock_token' },
        claimable: "status = 'PENDING'",
        order: ['id'],
        onExpiry: 'claimable',
      }),
      transitions: { PENDING: ['DONE'], DONE: [] },
      observe: async () => Promise.resolve(undefined),
    }),
    ...sync(2),
  ])
  const names = ['jobs', 'outbox', 'webhooks', 'reconcile', 'sync-jobs', 'sync']
  expect(names.map((name) => [name, runtime.worker(name).settings.concurrency])).toEqual([
    ['jobs', 10],
    ['outbox', 10],
    ['webhooks', 256],
    ['reconcile', 10],
    ['sync-jobs', 8],
    ['sync', 8],
  ])
  expect(relay({ publisher: stdoutPublisher() }).settings?.concurrency).toBe(100)
  const page = await projectFile('docs/reference/settings.md')
  for (const row of [
    '| a table of your own, `reconciler` | 10 |',
    '(`handlers`, `http`) | 10 |',
    '| its `maxBatch`: 100 |',
    '| `dispatcher` | 256 |',
    '| `sync.runner()`: jobs | 4 of each definition |',
    '| `sync.runner()`: chunks | 4 of each definition (its `concurrency`) |',
  ])
    expect(page).toContain(row)
})

describe('profiles', () => {
  it('stand for the figures that the page of the settings has', async () => {
    const page = await projectFile('docs/reference/settings.md')
    const rows = [
      ['profile', 'heavy', 'leaseMs', LEASE_MS.heavy],
      ['profile', 'externalCalls', 'leaseMs', LEASE_MS.externalCalls],
      ['reaperProfile', 'highVolume', 'reaperIntervalMs', REAPER_INTERVAL_MS.highVolume],
      ['reaperProfile', 'lowVolume', 'reaperIntervalMs', REAPER_INTERVAL_MS.lowVolume],
    ] as const
    for (const [setting, value, figure, ms] of rows)
      expect(page).toContain(`| \`${setting}\` | \`'${value}'\` | \`${figure}\` ${ms.toLocaleString('en')}`)
  })

  it.each([
    ['heavy', 60_000, 18_000],
    ['externalCalls', 120_000, 36_000],
  ] as const)('RULE-020-002: the profile %s is a lease of %d ms', async (profile, leaseMs, heartbeatMs) => {
    const { runtime } = await start([jobs({ profile })])
    expect(runtime.worker('jobs').settings).toMatchObject({ leaseMs, heartbeatMs })
    expect(runtime.worker('jobs').settings).not.toHaveProperty('profile')
  })

  it.each([
    ['highVolume', {}, 5_000],
    ['lowVolume', { profile: 'heavy' }, 30_000],
  ] as const)(
    'RULE-020-022: the reaper profile %s is an interval of the reaper, with %j',
    async (reaperProfile, more, reaperIntervalMs) => {
      const { runtime } = await start([jobs({ reaperProfile, ...more })])
      expect(runtime.worker('jobs').settings).toMatchObject({ reaperIntervalMs })
    },
  )

  it('a profile of the process applies to workers that set nothing themselves; what a worker sets comes first, as a profile or as a number', async () => {
    const { runtime } = await start(
      [
        jobs(),
        { ...jobs({ leaseMs: 20_000 }), name: 'number' },
        { ...jobs({ profile: 'externalCalls' }), name: 'profile' },
        dispatcher({ secretKey: SECRET_KEY, settings: { profile: 'heavy' } }),
      ],
      { settings: { profile: 'heavy', reaperProfile: 'highVolume' } },
    )
    const leases = ['jobs', 'number', 'profile', 'webhooks'].map(
      (name) => runtime.worker(name).settings.leaseMs,
    )
    expect(leases).toEqual([60_000, 20_000, 120_000, 60_000])
    expect(runtime.worker('jobs').settings.reaperIntervalMs).toBe(5_000)
    const { rows } = await db.query<{ declared: object }>({
      text: `select declared -> 'jobs' as declared from leasehold.workers where id = $1`,
      values: [runtime.id],
    })
    expect(rows).toEqual([{ declared: expect.objectContaining({ leaseMs: 60_000 }) }])
  })

  it('a number of the process does not outweigh the profile of a worker', async () => {
    const { runtime } = await start([jobs({ profile: 'heavy' })], { settings: { leaseMs: 20_000 } })
    expect(runtime.worker('jobs').settings.leaseMs).toBe(60_000)
  })

  it.each([
    [{ profile: 'huge' }, "profile is 'huge', but must be 'heavy' or 'externalCalls'"],
    [{ reaperProfile: 'heavy' }, "reaperProfile is 'heavy', but must be 'highVolume' or 'lowVolume'"],
    [{ profile: 'heavy', leaseMs: 5_000 }, 'profile is given together with leaseMs: leave one of them out'],
    [
      { reaperProfile: 'lowVolume', reaperIntervalMs: 1_000 },
      'reaperProfile is given together with reaperIntervalMs: leave one of them out',
    ],
    [{ reaperProfile: 'lowVolume' }, 'reaperIntervalMs is 30000, but must be less than leaseMs (30000)'],
    [{ profil: 'heavy' }, 'unknown setting profil (did you mean profile?)'],
  ])('%j is refused', async (settings, message) => {
    // As it would come from plain JavaScript.
    const given = settings as DeclaredSettings
    const of = { code: 'SETTING_INVALID', message: expect.stringContaining(message) }
    await expect(start([jobs(given)])).rejects.toMatchObject(of)
    await expect(start([jobs()], { settings: given })).rejects.toMatchObject(of)
  })
})
