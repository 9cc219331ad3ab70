import { readFile } from 'node:fs/promises'
import { describe, expect, it } from 'vitest'
import { isLeaseholdError } from '../errors.ts'
import { leaseTable, type LeaseTableDeclaration, OPTION_TEXTS } from './declaration.ts'

const declaration: LeaseTableDeclaration = {
  table: 'app.payment_requests',
  id: 'id',
  lease: { owner: 'reconcile_lease_owner', until: 'reconcile_lease_until', token: 'reconcile_lease_token' },
  claimable: "status in ('pending', 'detected')",
  order: ['created_at', 'id'],
  onExpiry: 'claimable',
  outcomes: { confirmed: { status: "'confirmed'" } },
}

const DELAY = "now() + coalesce($delay_ms, 0) * interval '1 millisecond'"

describe('a declaration is completed', () => {
  it('a table and a claimable condition are enough: the names of the other columns have defaults', () => {
    expect(leaseTable({ table: 'jobs', claimable: 'not done' })).toMatchObject({
      schema: 'public',
      name: 'jobs',
      id: ['id'],
      lease: { owner: 'lease_owner', until: 'lease_until', token: 'lease_token' },
      order: [{ column: 'id', direction: 'asc' }],
      onExpiry: 'claimable',
      attempts: undefined,
      outcomes: {},
    })
  })

  it('rows are claimed in the order in which they are due, then by their ids', () => {
    const { order } = leaseTable({
      table: 'jobs',
      id: ['tenant', 'n'],
      claimable: 'true',
      availableAt: 'due_at',
    })
    expect(order.map(({ column }) => column)).toEqual(['due_at', 'tenant', 'n'])
  })

  it('an order can name directions, and a table both of its parts', () => {
    const table = { schema: 'my app', name: 'a.b' }
    const order = ['priority DESC', { column: 'n', direction: 'desc' }, { column: 'id' }] as const
    expect(leaseTable({ ...declaration, table, order })).toMatchObject({
      ...table,
      order: [
        { column: 'priority', direction: 'desc' },
        { column: 'n', direction: 'desc' },
        { column: 'id', direction: 'asc' },
      ],
    })
  })

  it('a name is split at its first dot only', () => {
    expect(leaseTable({ ...declaration, table: 'app.a.b' })).toMatchObject({ schema: 'app', name: 'a.b' })
  })

  it('a lease without a token has no token column', () => {
    expect(leaseTable({ ...declaration, lease: { owner: 'a', until: 'b' } }).lease.token).toBeUndefined()
  })

  it('each column of attempts has a default name, can be renamed, and can be absent', () => {
    expect(leaseTable({ ...declaration, attempts: {} }).attempts).toEqual({
      column: 'attempts',
      max: undefined,
      expiries: 'expiries',
      error: 'last_error',
    })
    const renamed = { column: 'tries', max: 'max_tries', expiries: 'crashes', error: 'problem' }
    const outcomes = { dead: {} }
    expect(leaseTable({ ...declaration, outcomes, attempts: renamed }).attempts).toEqual(renamed)
    const absent = { column: false, expiries: false, error: false } as const
    expect(leaseTable({ ...declaration, attempts: absent }).attempts).toEqual({
      column: undefined,
      max: undefined,
      expiries: undefined,
      error: undefined,
    })
  })

  it('the delays of retries are a policy with defaults, or a schedule', () => {
    expect(leaseTable({ ...declaration, retry: { firstMs: 5 } }).retry).toMatchObject({
      firstMs: 5,
      factor: 2,
    })
    expect(leaseTable({ ...declaration, retry: [1, 2] }).retry).toEqual([1, 2])
    expect(() => leaseTable({ ...declaration, retry: { firstMs: -1 } })).toThrow('retry.firstMs is -1')
  })
})

describe('outcomes', () => {
  it('plain assignments are short for the full form', () => {
    const plain = leaseTable({ ...declaration, outcomes: { done: { sent_at: 'now()' } } })
    const full = leaseTable({ ...declaration, outcomes: { done: { set: { sent_at: 'now()' } } } })
    expect(plain).toEqual(full)
  })

  it('a column that is called set can be assigned in the short form', () => {
    const { outcomes } = leaseTable({ ...declaration, outcomes: { done: { set: 'true' } } })
    expect(outcomes.done.set).toEqual({ set: 'true' })
  })

  it('the kernel writes the attempt, the error and the delay of `retry` and `dead`, and nothing else', () => {
    const { outcomes } = leaseTable({
      table: 'emails',
      claimable: 'sent_at is null',
      availableAt: 'due_at',
      attempts: { max: 5 },
      outcomes: {
        done: { sent_at: 'now()' },
        retry: { retried: 'true' },
        dead: { failed_at: 'now()' },
      },
    })
    expect(outcomes.retry).toMatchObject({
      set: {
        expiries: '0',
        attempts: 'coalesce(attempts, 0) + 1',
        last_error: '$error',
        due_at: DELAY,
        retried: 'true',
      },
      args: { error: 'text', delay_ms: 'float8' },
    })
    expect(outcomes.dead).toMatchObject({
      set: { attempts: 'coalesce(attempts, 0) + 1', last_error: '$error', failed_at: 'now()' },
      args: { error: 'text' },
    })
    expect(outcomes.done).toMatchObject({ set: { sent_at: 'now()' }, args: {} })
  })

  it('a column that `retry` or `dead` assigns itself is left to it', () => {
    const { outcomes } = leaseTable({
      ...declaration,
      attempts: {},
      outcomes: { dead: { attempts: 'attempts', last_error: "'dead: ' || $error" } },
    })
    expect(outcomes.dead.set).toEqual({ attempts: 'attempts', last_error: "'dead: ' || $error" })
    expect(outcomes.dead.args).toEqual({ error: 'text' })
  })

  it('`retry` exists in a table with attempts or a due time, and gives the row back as `release` does', () => {
    const table = leaseTable({
      ...declaration,
      availableAt: 'due_at',
      writes: { release: { status: "'pending'", due_at: 'now()' } },
    })
    expect(table.outcomes['retry']).toMatchObject({
      set: { status: "'pending'", due_at: DELAY },
      args: { delay_ms: 'float8' },
    })
    expect('retry' in leaseTable({ ...declaration, attempts: {} }).outcomes).toBe(true)
    expect('retry' in leaseTable(declaration).outcomes).toBe(false)
  })

  it('the arguments that a worker knows need no declaration', () => {
    const outcomes = { retry: { note: "$error || ' after ' || $delay_ms" }, dead: { note: '$error' } }
    const table = leaseTable({ ...declaration, outcomes })
    expect(table.outcomes.retry.args).toEqual({ error: 'text', delay_ms: 'float8' })
    expect(table.outcomes.dead.args).toEqual({ error: 'text' })
  })
})

describe('a wrong declaration is refused, and the message names the table and the field', () => {
  it.each<[string, Partial<LeaseTableDeclaration> | Record<string, unknown>, string]>([
    ['no id column', { id: [] }, 'id'],
    ['an empty order', { order: [] }, 'order'],
    ['an unknown way to expire', { onExpiry: 'never' }, 'onExpiry'],
    ['a misspelt field', { claimabel: 'true' }, 'claimabel'],
    ['an empty predicate', { claimable: ' ' }, 'claimable'],
    [
      'a column with two roles',
      { lease: { owner: 'id', until: 'lease_until' } },
      '`id` and `lease.owner` both name the column id: name another column in one of them',
    ],
    [
      'an outcome that writes the token',
      { outcomes: { done: { reconcile_lease_token: '0' } } },
      'outcomes.done writes reconcile_lease_token',
    ],
    ['an assignment that is no SQL', { outcomes: { done: { sent: true } } }, 'outcomes.done'],
    [
      'columns without the time that latency is measured from',
      { createdAt: 'created_at', columns: ['id'] },
      '`columns` lacks created_at, which the worker reads from every row: add it',
    ],
    [
      'columns without one that the worker reads',
      { attempts: { column: 'tries' }, columns: ['id'] },
      '`columns` lacks tries, which the worker reads from every row: add it, or set `attempts.column` to false',
    ],
    ['a counter that is neither a column nor absent', { attempts: { column: true } }, 'attempts.column'],
    [
      'a limit of attempts without a counter',
      { attempts: { column: false, max: 3 }, outcomes: { dead: {} } },
      '`attempts.max` needs `attempts.column`',
    ],
    [
      'a limit of attempts that nothing follows from',
      { attempts: { max: 3 } },
      '`attempts.max` needs an outcome `dead`',
    ],
    ['a limit of no attempts', { attempts: { max: 0 } }, 'attempts'],
    ['a schedule with a negative delay', { retry: [1_000, -1] }, 'retry'],
    [
      'an ordering where what is in flight cannot be seen',
      { ordering: { key: 'customer', unfinished: 'true' } },
      '`ordering` needs `leased`',
    ],
    [
      'an ordering of ids of two columns',
      { id: ['a', 'b'], leased: 'true', ordering: { key: 'customer', unfinished: 'true' } },
      '`ordering` needs an `id` of one column',
    ],
    [
      'a column that is group and ordering key',
      { leased: 'true', ordering: { key: 'customer', unfinished: 'true' }, groups: 'customer' },
      '`ordering.key` and `groups` both name the column customer',
    ],
    [
      'attempts that are switched off',
      { attempts: false },
      'attempts is false, but must be an object such as {} or { max: 5 }, or left out to count nothing',
    ],
    [
      'a due time in a column of the lease',
      { availableAt: 'lease_until', lease: undefined },
      '`lease.until` and `availableAt` both name the column lease_until (`lease.until` does by default): name another column in one of them',
    ],
    [
      'one counter for attempts and expiries',
      { attempts: { column: 'expiries' } },
      '`attempts.column` and `attempts.expiries` both name the column expiries (`attempts.expiries` does by default): name another column in one of them',
    ],
    [
      'a counter that is also the limit',
      { attempts: { column: 'tries', max: 'tries' }, outcomes: { dead: {} } },
      '`attempts.column` and `attempts.max` both name the column tries',
    ],
    ['an id that names a column twice', { id: ['id', 'id'] }, '`id` names the column id twice'],
    ['a missing condition', { claimable: undefined }, 'claimable is undefined, but must be an SQL condition'],
    ['a time that is no column', { createdAt: 7 }, 'createdAt is 7, but must be the name of a column'],
    ['a null', { availableAt: null }, 'availableAt is null, but must be the name of a column'],
    [
      'an option that does not exist',
      { weather: {} },
      'unknown option weather (the options are table, claimable,',
    ],
    ['another one', { scenery: {} }, 'unknown option scenery'],
    [
      'a misspelt column of the lease',
      { lease: { owner: 'a', untill: 'b' } },
      'lease: unknown option untill (did you mean until?)',
    ],
    [
      'an assignment that is no text',
      { outcomes: { done: { sent: true } } },
      "outcomes.done.sent is true, but must be SQL, such as 'now()' or \"'sent'\"",
    ],
    [
      'an unknown field of an outcome',
      { outcomes: { done: { set: {}, wen: 'true' } } },
      'outcomes.done: unknown option wen (did you mean when?)',
    ],
    [
      'a bucket without a column for the token',
      { bucket: 'bucket', lease: { owner: 'owner', until: 'until' } },
      '`bucket` needs `lease.token`',
    ],
    [
      'a policy of retries that cannot work',
      { availableAt: 'due_at', retry: { factor: 0 } },
      'retry.factor is 0, but must be a number from 1',
    ],
    [
      'an argument without a type',
      { outcomes: { parked: { note: '$error' } } },
      'outcomes.parked uses $error',
    ],
  ])('%s', (_, wrong, message) => {
    // Deliberately not what the type allows.
    const given = { ...declaration, ...wrong } as LeaseTableDeclaration
    expect(() => leaseTable(given)).toThrow(expect.objectContaining({ code: 'LEASE_TABLE_INVALID' }))
    expect(() => leaseTable(given)).toThrow('app.payment_requests')
    expect(() => leaseTable(given)).toThrow(message)
  })

  it('with all its problems at once, in our words and not those of a library', () => {
    const wrong = {
      table: 'jobs',
      claimabel: 'true',
      id: [],
      attempts: { max: 0, colum: 'tries' },
      outcomes: { done: { sent: 1 } },
      order: 'id',
    }
    const message = refusalOf(wrong)
    expect(message.split('\n')).toEqual([
      'The lease table jobs is declared wrongly:',
      '  - unknown option claimabel (did you mean claimable?)',
      '  - claimable is undefined, but must be an SQL condition, such as "status = \'pending\'"',
      '  - id is [], but must be the name of a column, or a list of them',
      "  - order is 'id', but must be a list such as ['priority desc', 'created_at', 'id']",
      '  - attempts: unknown option colum (did you mean column?)',
      '  - attempts.max is 0, but must be a whole number from 1, or the name of the column that holds it',
      "  - outcomes.done.sent is 1, but must be SQL, such as 'now()' or \"'sent'\"",
    ])
  })

  it('with all its contradictions at once', () => {
    const message = refusalOf({
      ...declaration,
      availableAt: 'id',
      columns: ['id'],
      attempts: { max: 3 },
      outcomes: { done: { id: '1', note: '$why' } },
    })
    for (const part of [
      '`attempts.max` needs an outcome `dead`',
      '`columns` lacks attempts',
      '`id` and `availableAt` both name the column id',
      'outcomes.done writes id',
      'outcomes.done uses $why',
    ])
      expect(message).toContain(`\n  - ${part}`)
  })

  it.each([undefined, null, 'jobs', []])('also when it is no object: %j', (given) => {
    expect(refusalOf(given)).toBe(
      "A lease table is declared wrongly: the declaration must be an object such as { table: 'jobs', claimable: 'not done' }.",
    )
  })
})

it('docs/guides/own-table.md has a table of all options, with the rules by which they are checked', async () => {
  const page = await readFile(new URL('../../docs/guides/own-table.md', import.meta.url), 'utf8')
  const section = /^## The declaration$.*?(?=^## )/ms.exec(page)?.[0] ?? ''
  const rows = section.matchAll(/^\| `([\w.<>]+)` \| (.*?) \|/gm)
  const documented = [...rows].map(([, option, rule]) => [option, rule])
  expect(documented).toEqual([...OPTION_TEXTS])
})

function refusalOf(wrong: unknown): string {
  try {
    // Deliberately not what the type allows.
    leaseTable(wrong as LeaseTableDeclaration)
  } catch (error) {
    if (isLeaseholdError(error, 'LEASE_TABLE_INVALID')) return error.message
    throw error
  }
  throw new Error('it was accepted')
}
