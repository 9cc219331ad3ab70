import { describe, expect, it } from 'vitest'
import { leaseTable } from './declaration.ts'
import type { LeaseTableDeclaration } from './table.ts'

const declaration: LeaseTableDeclaration = {
  table: 'app.payment_requests',
  id: 'id',
  lease: { owner: 'reconcile_lease_owner', until: 'reconcile_lease_until', token: 'reconcile_lease_token' },
  claimable: "status in ('pending', 'detected')",
  order: ['created_at', 'id'],
  onExpiry: 'claimable',
  outcomes: { confirmed: { set: { status: "'confirmed'" } } },
}

it('resolves the shorthands of a declaration', () => {
  const table = leaseTable({ ...declaration, table: 'jobs', order: ['priority DESC', 'id'] })
  expect(table).toMatchObject({
    schema: 'public',
    name: 'jobs',
    key: ['id'],
    order: [
      { column: 'priority', direction: 'desc' },
      { column: 'id', direction: 'asc' },
    ],
  })
})

it('takes an attempt counter, a counter with its limit, and a schedule of delays', () => {
  expect(leaseTable({ ...declaration, attempts: 'tries' })).toMatchObject({ attempts: { column: 'tries' } })
  const attempts = { column: 'tries', max: 3, expiries: 'expiries' }
  const outcomes = { dead: { set: {} } }
  expect(leaseTable({ ...declaration, attempts, outcomes, retry: [1, 2] })).toMatchObject({
    attempts,
    retry: [1, 2],
  })
  expect(leaseTable({ ...declaration, retry: { firstMs: 5 } })).toMatchObject({
    retry: { firstMs: 5, factor: 2 },
  })
  expect(() => leaseTable({ ...declaration, retry: { firstMs: -1 } })).toThrow('retry.firstMs is -1')
})

it('splits a name at its first dot only', () => {
  expect(leaseTable({ ...declaration, table: 'app.a.b' })).toMatchObject({ schema: 'app', name: 'a.b' })
})

describe('a wrong declaration is refused, and the message names the table and the part', () => {
  it.each<[string, Partial<LeaseTableDeclaration> | Record<string, unknown>, string]>([
    ['no key column', { id: [] }, 'id'],
    ['an empty order', { order: [] }, 'order'],
    ['an unknown way to expire', { onExpiry: 'never' }, 'onExpiry'],
    ['a misspelt part', { claimabel: 'true' }, 'claimabel'],
    ['an empty predicate', { claimable: ' ' }, 'claimable'],
    [
      'a column with two roles',
      { lease: { owner: 'id', until: 'lease_until' } },
      'the column id has two roles',
    ],
    [
      'an outcome that writes the token',
      { outcomes: { done: { set: { reconcile_lease_token: '0' } } } },
      'outcomes.done.set writes reconcile_lease_token',
    ],
    [
      'columns without one that the worker reads',
      { attempts: 'tries', columns: ['id'] },
      '`columns` lacks tries',
    ],
    [
      'a limit of attempts without a counter',
      { attempts: { max: 3 }, outcomes: { dead: { set: {} } } },
      '`attempts.max` needs `attempts.column`',
    ],
    [
      'a limit of attempts that nothing follows from',
      { attempts: { column: 'tries', max: 3 } },
      '`attempts.max` needs an outcome `dead`',
    ],
    ['a limit of no attempts', { attempts: { column: 'tries', max: 0 } }, 'attempts'],
    ['a schedule with a negative delay', { retry: [1_000, -1] }, 'retry'],
    [
      'an ordering where what is in flight cannot be seen',
      { ordering: { key: 'customer', unfinished: 'true' } },
      '`ordering` needs `held`',
    ],
    [
      'an ordering of a key of two columns',
      { id: ['a', 'b'], held: 'true', ordering: { key: 'customer', unfinished: 'true' } },
      '`ordering` needs an `id` of one column',
    ],
    [
      'a column that is group and ordering key',
      { held: 'true', ordering: { key: 'customer', unfinished: 'true' }, groups: 'customer' },
      'the column customer has two roles',
    ],
    [
      'an argument without a type',
      { outcomes: { retry: { set: { note: '$error' } } } },
      'outcomes.retry uses $error',
    ],
  ])('%s', (_, wrong, message) => {
    // Deliberately not what the type allows.
    const given = { ...declaration, ...wrong } as LeaseTableDeclaration
    expect(() => leaseTable(given)).toThrow(expect.objectContaining({ code: 'LEASE_TABLE_INVALID' }))
    expect(() => leaseTable(given)).toThrow('app.payment_requests')
    expect(() => leaseTable(given)).toThrow(message)
  })
})
