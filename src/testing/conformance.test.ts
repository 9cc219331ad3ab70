import { afterAll, beforeAll, describe, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { specimens, subjectOf } from '../../test/support/lease-tables.ts'
import { openDatabase } from '../postgres/database.ts'
import { leaseConformance } from './index.ts'

const db = openDatabase({ url: useDatabase().url })
afterAll(async () => db.close())

describe.each(specimens)('the lease conformance suite on $name', (specimen) => {
  const subject = subjectOf(db, specimen)
  beforeAll(async () => subject.create())
  // oxlint-disable-next-line vitest/expect-expect, vitest/valid-title -- the titles and assertions are in the suite
  for (const { name, run } of leaseConformance(subject)) it(name, run)
})
