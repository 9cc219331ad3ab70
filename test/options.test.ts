import { expect, it } from 'vitest'
import {
  createMetrics,
  Events,
  fixedGroups,
  leaseTable,
  migrate,
  observeWithOpenTelemetry,
  openDatabase,
  openLeaseStore,
  retry,
  startRuntime,
  workerGauges,
} from '../src/index.ts'

/** Called with one option that does not exist, as from plain JavaScript: nothing may be reached after the check. */
const CALLS: Readonly<Record<string, (options: never) => unknown>> = {
  openDatabase,
  workerGauges,
  fixedGroups,
  retry,
  leaseTable,
  startRuntime,
  createMetrics: (options) => createMetrics(new Events(), options),
  observeWithOpenTelemetry: (options) => observeWithOpenTelemetry(new Events(), NOTHING, options),
  migrate: async (options) => migrate(NOTHING, options),
  openLeaseStore: async (options) =>
    openLeaseStore(NOTHING, leaseTable({ table: 'jobs', claimable: 'true' }), options),
}

/** A value that must not be used. */
const NOTHING = undefined as never

it.each(Object.entries(CALLS))('%s refuses an option that it does not know, by its name', async (_, call) => {
  const called = async (): Promise<unknown> => call({ lifeline: 1 } as never)
  await expect(called()).rejects.toThrow('lifeline')
  await expect(called()).rejects.toMatchObject({ name: 'LeaseholdError' })
})
