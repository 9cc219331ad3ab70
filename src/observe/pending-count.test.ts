import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { specimens, subjectOf } from '../../test/support/lease-tables.ts'
import { openLeaseStore } from '../lease/index.ts'
import { openDatabase } from '../postgres/index.ts'
import { pendingCount } from './pending-count.ts'

const db = openDatabase({ url: useDatabase().url })
afterAll(async () => db.close())

describe.each(specimens)('on $name', (specimen) => {
  const subject = subjectOf(db, specimen)
  beforeAll(async () => subject.create())

  it('counts what could be claimed and what is leased, and no further than it is told', async () => {
    const before = (await pendingCount(db, specimen.table)).pending
    await subject.insert(7)
    const bucket = specimen.bucket === undefined ? {} : { bucket: specimen.bucket }
    const store = await openLeaseStore(db, specimen.table, { owner: 'w1', ...bucket })
    await store.claim({ limit: 3, leaseMs: 60_000, lanes: specimen.lanes?.map((key) => ({ key, room: 10 })) })
    expect(await pendingCount(db, specimen.table)).toEqual({ pending: before + 4, leased: 3, most: 10_000 })
    expect(await pendingCount(db, specimen.table, 2)).toEqual({ pending: 2, leased: 2, most: 2 })
  })
})
