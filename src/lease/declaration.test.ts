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
      'a reaper that counts twice',
      { attempts: 'tries', writes: { reap: { tries: 'tries + 1' } } },
      'writes.reap sets tries',
    ],
    [
      'notes where an expired lease is claimable',
      { notes: { table: 'app.notes', column: 'claim_id' } },
      "`notes` needs onExpiry 'reap'",
    ],
    [
      'notes of a key of two columns',
      { id: ['a', 'b'], onExpiry: 'reap', notes: { table: 'app.notes', column: 'claim_id' } },
      '`notes` needs an `id` of one column',
    ],
    [
      'a column that is key and note',
      { onExpiry: 'reap', notes: { table: 'app.notes', column: 'id' } },
      'the column id has two roles',
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
