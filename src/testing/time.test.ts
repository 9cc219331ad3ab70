import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { specimens, subjectOf } from '../../test/support/lease-tables.ts'
import { insertJobs, jobs, type Job, WORK_DDL, WORK_TABLE } from '../../test/support/work-table.ts'
import { leaseTable } from '../lease/declaration.ts'
import { openLeaseStore } from '../lease/store.ts'
import { enqueue } from '../outbox/enqueue/enqueue.ts'
import { outboxTable } from '../outbox/table.ts'
import { openDatabase } from '../postgres/database.ts'
import type { HandlerContext } from '../worker/context.ts'
import { advance, drain, expireLeases, holdLease, makeDue } from './index.ts'
import { A_TOKEN } from '../../test/support/tokens.ts'

const { url } = useDatabase()
const db = { ...openDatabase({ url }), url }
afterAll(async () => db.close())

const LEASE_MS = 60_000

describe.each(specimens)('on a table with $name', (specimen) => {
  const subject = subjectOf(db, specimen)
  const { table } = subject
  beforeAll(async () => subject.create())
  beforeEach(async () => subject.empty())

  it('holdLease takes a row from the worker that holds it, whose settlement is fenced off', async () => {
    const [id = '', other = ''] = await subject.insert(4)
    const { bucket = 0, final } = subject
    const store = await openLeaseStore(db, table, { owner: 'first', bucket })
    const claimed = await store.claim({ limit: 2, leaseMs: LEASE_MS, ids: [id, other] })
    const leases = claimed.claimed.map(({ lease }) => lease)
    expect(leases).toHaveLength(2)
    const [mine, untouched] = leases

    const held = await holdLease(db, { table, id })
    expect(held.lease).toMatchObject({ id, owner: 'another-worker' })
    expect(held.lease.token).toBeGreaterThan(mine?.token ?? 0n)
    const args = leases.map(() => final.args ?? {})
    expect(await store.settle(final.outcome, leases, { args })).toMatchObject({
      ended: [untouched],
      fencedOff: [mine],
    })
    const settled = await held.store.settle(final.outcome, [held.lease], { args: [final.args ?? {}] })
    expect(settled.ended).toEqual([held.lease])
    await expect(holdLease(db, { table, id })).rejects.toMatchObject({ code: 'STATE_CONFLICT' })
  })

  it('expireLeases and advance end leases, of the given rows only', async () => {
    const [id = '', other = ''] = await subject.insert(4)
    const { store, lease } = await holdLease(db, { table, id })
    const second = await holdLease(db, { table, id: other })
    expect(await expireLeases(db, { table, ids: [id] })).toBe(1)
    expect((await store.renew([lease, second.lease], LEASE_MS)).lost).toEqual([lease])
    await advance(db, LEASE_MS - 10_000, { table })
    expect((await store.renew([second.lease], LEASE_MS)).lost).toEqual([])
    await advance(db, LEASE_MS, { table })
    expect((await store.renew([second.lease], LEASE_MS)).lost).toEqual([second.lease])
  })
})

describe('on the tables of Leasehold', () => {
  beforeEach(async () => {
    await db.query({ text: 'truncate leasehold.outbox restart identity' })
  })

  async function statuses(): Promise<unknown[]> {
    const { rows } = await db.query({
      text: 'select status, available_at <= now() as due, locked_until <= now() as expired from leasehold.outbox order by id',
    })
    return rows
  }

  it('makeDue makes a scheduled event due, and advance one whose time comes by that', async () => {
    const at = (ms: number): Date => new Date(Date.now() + ms)
    for (const availableAt of [at(3_600_000), at(7_200_000)])
      await db.transaction(async (tx) => enqueue(tx, { type: 'later', payload: {}, availableAt }))
    expect(await advance(db, 3_700_000)).toBe(2)
    expect(await statuses()).toMatchObject([{ due: true }, { due: false }])
    expect(await makeDue(db, { table: outboxTable(), ids: ['1'] })).toBe(0)
    expect(await makeDue(db)).toBe(1)
    expect(await statuses()).toMatchObject([{ due: true }, { due: true }])
  })

  it('expireLeases ends the lease of an event and changes nothing else; a published event stays as it is', async () => {
    for (const n of [1, 2]) await db.transaction(async (tx) => enqueue(tx, { type: 'a', payload: n }))
    const table = outboxTable()
    const first = await holdLease(db, { table, id: '1' })
    await first.store.settle('done', [first.lease])
    await holdLease(db, { table, id: '2' })
    expect(await expireLeases(db)).toBe(1)
    expect(await statuses()).toEqual([
      { status: 'PUBLISHED', due: true, expired: null },
      { status: 'CLAIMED', due: true, expired: true },
    ])
  })

  it('refuses ids without a table, an unknown row, and a time that is none', async () => {
    await expect(makeDue(db, { ids: ['1'] })).rejects.toMatchObject({ code: 'SETTING_INVALID' })
    await expect(holdLease(db, { table: outboxTable(), id: '99' })).rejects.toMatchObject({
      code: 'ROW_NOT_FOUND',
    })
    await expect(advance(db, Number.NaN)).rejects.toMatchObject({ code: 'SETTING_INVALID' })
  })
})

it('a write of a handler that has lost its row is fenced off, and its transaction is rolled back', async () => {
  await db.query({ text: WORK_DDL })
  const table = leaseTable(WORK_TABLE)
  const [id = ''] = await insertJobs(db, 1)
  const errors: unknown[] = []
  const handle = async (context: HandlerContext<Job>): Promise<void> => {
    await holdLease(db, { table, id })
    try {
      await db.transaction(async (tx) => {
        await tx.query({
          text: `insert into public.runs (job, token, worker) values ($1, $2, 'late')`,
          values: [id, String(context.token)],
        })
        await context.settleIn(tx)
      })
    } catch (error) {
      errors.push(error)
      throw error
    }
  }
  expect(await drain(db, { workers: [{ name: 'jobs', table, handle }] })).toMatchObject({ settled: 0 })
  expect(errors).toMatchObject([{ code: 'FENCED_OFF' }])
  expect((await db.query({ text: 'select from public.runs' })).rowCount).toBe(0)
  expect(await jobs(db)).toMatchObject([
    { status: 'CLAIMED', claimed_by: 'another-worker', lock_token: A_TOKEN },
  ])
})
