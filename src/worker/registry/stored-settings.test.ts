import { EventEmitter, once } from 'node:events'
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { openDatabase, type Database } from '../../postgres/database.ts'
import { Listener } from '../../postgres/listener.ts'
import { changeSettings, readSettings, type SettingsPatch } from './stored-settings.ts'
import { describeWorker, presence, stopped as stop } from './registry.ts'
import { workerSettings } from '../settings.ts'

useQuietProcess()
const database = useDatabase()
let db: Database

beforeAll(() => {
  db = openDatabase({ url: database.url, maxConnections: 20 })
})

afterAll(async () => {
  await db.close()
})

beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.settings, leasehold.audit, leasehold.workers' })
  await register('one', { outbox: {} })
})

/** A process that was started with workers of these names and settings. */
async function register(id: string, declared: Readonly<Record<string, object>>): Promise<void> {
  await db.query(presence('leasehold', describeWorker(Object.keys(declared), { id, declared }), 0, undefined))
}

async function change(patch: SettingsPatch, principal = 'ann') {
  return changeSettings(db, 'leasehold', 'outbox', patch, principal)
}

async function stored() {
  return readSettings(db, 'leasehold', 'outbox')
}

async function audit(): Promise<object[]> {
  const text = 'select principal, action, target, details from leasehold.audit order by id'
  return (await db.query({ text })).rows
}

it('the groups of a worker, which the registry shows beside its settings, are no setting', async () => {
  await register('two', { outbox: { concurrency: 7, groups: ['a', 'b'] } })
  expect(await change({ pollMs: 500 })).toMatchObject({ pollMs: 500 })
  expect(await stored()).toEqual({ pollMs: 500 })
})

it('settings that were never stored are undefined', async () => {
  expect(await stored()).toBeUndefined()
})

it('RULE-020-002: a change is stored, completed, announced, and in the audit with who made it', async () => {
  const heard = new EventEmitter()
  const listener = new Listener({
    url: database.url,
    channels: ['leasehold_settings'],
    onNotification: (_, payload) => heard.emit('settings', payload),
    onEvent: ({ type }) => heard.emit(type),
  })
  const listening = once(heard, 'listening')
  listener.start()
  await listening
  const announced = once(heard, 'settings')
  expect(await change({ leaseMs: 60_000, concurrency: 20 })).toEqual(
    workerSettings({ leaseMs: 60_000, concurrency: 20 }),
  )
  expect(await announced).toEqual(['outbox'])
  await listener.stop()
  expect(await stored()).toEqual({ leaseMs: 60_000, concurrency: 20 })

  expect(await change({ concurrency: null, batch: 50 }, 'bob')).toEqual(
    workerSettings({ leaseMs: 60_000, batch: 50 }),
  )
  expect(await stored()).toEqual({ leaseMs: 60_000, batch: 50 })
  const entry = { action: 'settings.change', target: 'outbox' }
  expect(await audit()).toEqual([
    { ...entry, principal: 'ann', details: { before: {}, after: { leaseMs: 60_000, concurrency: 20 } } },
    {
      ...entry,
      principal: 'bob',
      details: { before: { leaseMs: 60_000, concurrency: 20 }, after: { leaseMs: 60_000, batch: 50 } },
    },
  ])
})

it('RULE-020-011: a patch that cannot work together with what is stored is refused whole, and nothing is written', async () => {
  await change({ leaseMs: 60_000, heartbeatMs: 15_000 })
  const outcome = change({ leaseMs: 30_000, concurrency: 99 })
  await expect(outcome).rejects.toMatchObject({
    code: 'SETTING_INVALID',
    message: expect.stringMatching(/heartbeatMs is 15000.*leaseMs \(30000/),
  })
  expect(await stored()).toEqual({ leaseMs: 60_000, heartbeatMs: 15_000 })
  expect(await audit()).toHaveLength(1)
  expect(await change({ leaseMs: 30_000, heartbeatMs: null })).toMatchObject({ heartbeatMs: 9_000 })
})

it.each([{ concurrency: 0 }, { batch: 1.5 }, { leaseMs: -1 }, { paused: 'yes' }, { leasMs: 5 }])(
  'a first change that is refused stores no row: %j',
  async (patch) => {
    // As it would come from an API.
    await expect(change(patch as SettingsPatch)).rejects.toMatchObject({ code: 'SETTING_INVALID' })
    expect(await stored()).toBeUndefined()
    expect(await audit()).toEqual([])
  },
)

it('a change is checked against what the workers of that name were started with', async () => {
  await register('two', {
    sync: { leaseMs: 120_000, shutdownTimeoutMs: 90_000 },
    webhooks: { leaseMs: 60_100 },
  })
  const change = async (name: string, patch: SettingsPatch) =>
    changeSettings(db, 'leasehold', name, patch, 'ann')
  await expect(change('sync', { leaseMs: 60_000 })).rejects.toMatchObject({
    code: 'SETTING_INVALID',
    message: expect.stringMatching(/worker sync.*"leaseMs":120000.*shutdownTimeoutMs is 90000/),
  })
  expect(await readSettings(db, 'leasehold', 'sync')).toBeUndefined()
  expect(await change('sync', { leaseMs: 60_000, shutdownTimeoutMs: 60_000 })).toMatchObject({
    leaseMs: 60_000,
  })
  expect(await change('webhooks', { heartbeatMs: 20_000 })).toMatchObject({
    leaseMs: 60_100,
    heartbeatMs: 20_000,
  })
  // Every one that runs has to be able to follow; one that has stopped need not.
  await register('three', { webhooks: { leaseMs: 30_000 } })
  await expect(change('webhooks', { heartbeatMs: 15_000 })).rejects.toMatchObject({ code: 'SETTING_INVALID' })
  await db.query(stop('leasehold', 'three'))
  expect(await change('webhooks', { heartbeatMs: 15_000 })).toMatchObject({ heartbeatMs: 15_000 })
  await db.query(stop('leasehold', 'two'))
  expect(await change('sync', { concurrency: 3 })).toMatchObject({ concurrency: 3, leaseMs: 60_000 })
})

it('a pause is stored, whatever else is stored and cannot work', async () => {
  await db.query({
    text: `insert into leasehold.settings (name, value, changed_by) values ('outbox', '{"leaseMs": 1}', 'by hand')`,
  })
  expect(await change({ paused: true })).toMatchObject({ paused: true })
  expect(await stored()).toEqual({ leaseMs: 1, paused: true })
  await expect(change({ concurrency: 3 })).rejects.toMatchObject({
    message: expect.stringContaining('leaseMs is 1'),
  })
  // As it would come from an API.
  await expect(change({ paused: 'yes' } as unknown as SettingsPatch)).rejects.toMatchObject({
    message: expect.stringContaining("paused is 'yes', but must be true or false"),
  })
})

it.each([
  ['outbx', /no worker named "outbx"\. Did you mean outbox\?/],
  ['payments', /no worker named "payments"\. Known are outbox;/],
])('the name %s, which no process was started with, is refused', async (name, message) => {
  await expect(changeSettings(db, 'leasehold', name, { paused: true }, 'ann')).rejects.toMatchObject({
    code: 'SETTING_INVALID',
    message: expect.stringMatching(message),
  })
  expect(await readSettings(db, 'leasehold', name)).toBeUndefined()
})

it('concurrent changes do not overwrite each other', async () => {
  const patches: SettingsPatch[] = [
    { concurrency: 11 },
    { prefetch: 12 },
    { batch: 13 },
    { claimLoops: 14 },
    { pollMs: 150 },
    { settleDelayMs: 16 },
    { paused: true },
  ]
  await Promise.all(patches.map(async (patch) => change(patch)))
  expect(await stored()).toEqual(Object.assign({}, ...patches))
  expect(await audit()).toHaveLength(patches.length)
})

it('of concurrent changes that cannot work together, one is refused', async () => {
  const outcomes = await Promise.allSettled([change({ leaseMs: 20_000 }), change({ heartbeatMs: 9_500 })])
  expect(outcomes.map(({ status }) => status).toSorted()).toEqual(['fulfilled', 'rejected'])
  expect(workerSettings(await stored())).toBeDefined()
})

it.each([
  ['', 'ann'],
  ['outbox', ' '],
  ['out\0box', 'ann'],
  ['x'.repeat(9_000), 'ann'],
  ['outbox', 'a\0nn'],
  // As a caller without TypeScript might do.
  [1 as unknown as string, 'ann'],
  ['outbox', undefined as unknown as string],
])('the name %j and the principal %j are refused', async (name, principal) => {
  await expect(changeSettings(db, 'leasehold', name, {}, principal)).rejects.toMatchObject({
    code: 'SETTING_INVALID',
  })
})
