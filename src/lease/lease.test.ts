import { expect, it } from 'vitest'
import { leaseTable } from './declaration.ts'
import { idValues, rowId, trustedUntil, trustMargin } from './lease.ts'

const TABLE = {
  table: 'jobs',
  lease: { owner: 'owner', until: 'until' },
  claimable: 'true',
  onExpiry: 'claimable',
} as const
const SIMPLE = leaseTable({ ...TABLE, id: 'id', order: ['id'] })
const COMPOSITE = leaseTable({ ...TABLE, id: ['tenant', 'id'], order: ['tenant', 'id'] })

it('D8: a lease is trusted from when it was asked for, for its duration less a margin of 5 %, at most a second', () => {
  expect(trustedUntil(1_000, 10_000)).toBe(10_500)
  expect(trustedUntil(1_000, 120_000)).toBe(120_000)
  expect([100, 20_000, 20_001, 600_000].map(trustMargin)).toEqual([5, 1_000, 1_000, 1_000])
})

it('the id of a row is the text of its only column, or a JSON array of the texts of several', () => {
  expect(rowId('7')).toBe('7')
  expect(rowId('a', '7')).toBe('["a","7"]')
  expect(idValues(SIMPLE, '["a","7"]')).toEqual(['["a","7"]'])
  expect(idValues(COMPOSITE, rowId('a', '7'))).toEqual(['a', '7'])
})

it.each(['["a"]', '["a","7","x"]', '["a",7]', '[1,"7"]', '"ab"', '{"length":2}'])(
  'an id that does not fit the columns of its table is refused: %s',
  (id) => {
    expect(() => idValues(COMPOSITE, id)).toThrow(
      `${id} is not a row id of public.jobs: its id has 2 columns`,
    )
  },
)
