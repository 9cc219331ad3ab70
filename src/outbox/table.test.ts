import { randomUUID } from 'node:crypto'
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { openDatabase } from '../postgres/database.ts'
import { STATUSES, type Status, TRANSITIONS } from './transitions.ts'

/* The table as SQL: what PostgreSQL itself refuses and allows, whatever program writes to it. */

const { url } = useDatabase()
const db = openDatabase({ url })
beforeEach(async () => db.query({ text: 'truncate leasehold.outbox restart identity' }))
afterAll(async () => db.close())

const LEGAL =
  'Legal are PENDING → CLAIMED, CLAIMED → PUBLISHED, CLAIMED → PENDING, CLAIMED → DEAD, PUBLISHED → PENDING, DEAD → PENDING.'

/** The assignments that make an event consistent in a state, whatever state it comes from. */
const FIELDS: Readonly<Record<Status, string>> = {
  PENDING: `status = 'PENDING', published_at = null, published_by = null, dead_at = null, parked = false,
    claimed_at = null, claimed_by = null, locked_until = null`,
  CLAIMED: `status = 'CLAIMED', published_at = null, dead_at = null, parked = false,
    claimed_at = now(), claimed_by = 'r', locked_until = now(), lock_token = lock_token + 1`,
  PUBLISHED: `status = 'PUBLISHED', published_at = now(), dead_at = null, parked = false,
    claimed_at = null, claimed_by = null, locked_until = null`,
  DEAD: `status = 'DEAD', published_at = null, dead_at = now(),
    claimed_at = null, claimed_by = null, locked_until = null`,
}

async function insert(columns: Readonly<Record<string, string>> = {}): Promise<void> {
  const names = ['event_type', 'payload', ...Object.keys(columns)]
  const values = ["'test.happened'", "'{}'", ...Object.values(columns)]
  await db.query({ text: `insert into leasehold.outbox (${names.join(', ')}) values (${values.join(', ')})` })
}

async function change(set: string): Promise<void> {
  await db.query({ text: `update leasehold.outbox set ${set}` })
}

/** Brings a new event into a state by legal transitions. */
async function eventIn(status: Status): Promise<void> {
  await insert()
  if (status !== 'PENDING') await change(FIELDS.CLAIMED)
  if (status === 'PUBLISHED' || status === 'DEAD') await change(FIELDS[status])
}

async function statuses(): Promise<string[]> {
  const { rows } = await db.query<{ status: string }>({
    text: 'select status from leasehold.outbox order by id',
  })
  return rows.map(({ status }) => status)
}

async function count(): Promise<number> {
  return (await statuses()).length
}

describe('the transitions of an event', () => {
  const pairs = STATUSES.flatMap((from) =>
    STATUSES.filter((to) => to !== from).map((to) => [from, to] as const),
  )
  const isLegal = ([from, to]: readonly [Status, Status]): boolean => TRANSITIONS[from][to] !== undefined

  it.each(pairs.filter(isLegal))('LIFE-02: allows a change from %s to %s', async (from, to) => {
    await eventIn(from)
    await change(FIELDS[to])
    expect(await statuses()).toEqual([to])
  })

  it.each(pairs.filter((pair) => !isLegal(pair)))(
    'LIFE-02: refuses a change from %s to %s and names the legal transitions',
    async (from, to) => {
      await eventIn(from)
      await expect(change(FIELDS[to])).rejects.toMatchObject({
        message: `event 1 cannot go from ${from} to ${to}`,
        code: '23514',
        column: 'status',
        detail: LEGAL,
        hint: expect.any(String),
      })
      expect(await statuses()).toEqual([from])
    },
  )

  it('LIFE-02: names exactly the transitions of transitions.ts in the error', () => {
    const legal = pairs.filter(isLegal).map(([from, to]) => `${from} → ${to}`)
    const named = LEGAL.replace(/^Legal are |\.$/g, '').split(', ')
    expect(new Set(named)).toEqual(new Set(legal))
  })

  it.each(STATUSES)('LIFE-02: allows changes of other columns to an event that stays %s', async (status) => {
    await eventIn(status)
    await change("last_error = 'an operator was here'")
    await change(`status = '${status}'`)
    expect(await statuses()).toEqual([status])
  })

  it('LIFE-02: refuses an illegal change in an upsert and in a merge as well', async () => {
    await eventIn('PUBLISHED')
    const eventId = randomUUID()
    await change(`event_id = '${eventId}', event_id_given = true`)
    const upsert = `insert into leasehold.outbox (event_type, payload, event_id) values ('a', '1', '${eventId}')
      on conflict (event_id, bucket) where event_id_given do update set ${FIELDS.DEAD.replaceAll(/\s+/g, ' ')}`
    await expect(db.query({ text: upsert })).rejects.toThrow('cannot go from PUBLISHED to DEAD')
    const merge = `merge into leasehold.outbox as o using (values (1)) as v (id) on o.id = v.id
      when matched then update set ${FIELDS.DEAD}`
    await expect(db.query({ text: merge })).rejects.toThrow('cannot go from PUBLISHED to DEAD')
  })

  it('LIFE-01: knows four states and refuses every other', async () => {
    await eventIn('CLAIMED')
    await expect(change("status = 'PROCESSING'")).rejects.toThrow('cannot go from CLAIMED to PROCESSING')
    await expect(change('status = null')).rejects.toThrow('cannot go from CLAIMED to <NULL>')
    await expect(insert({ status: "'PROCESSING'" })).rejects.toMatchObject({
      constraint: 'outbox_status_is_known',
    })
  })

  it('D3: refuses a lock_token that goes down, and a claim that does not raise it', async () => {
    const claimWithoutToken = FIELDS.CLAIMED.replace(', lock_token = lock_token + 1', '')
    await insert()
    await expect(change(claimWithoutToken)).rejects.toThrow('grows with every claim')
    await change(FIELDS.CLAIMED)
    await expect(change('lock_token = 0')).rejects.toMatchObject({
      message: expect.stringContaining('never goes down: 0 cannot follow 1'),
      column: 'lock_token',
      code: '23514',
    })
    for (const status of ['PUBLISHED', 'PENDING'] as const) {
      await expect(change(`${FIELDS[status]}, lock_token = 0`)).rejects.toThrow('never goes down')
      await change(FIELDS[status])
    }
    await expect(change(claimWithoutToken)).rejects.toThrow('grows with every claim')
  })
})

describe('the fields of an event', () => {
  it.each([
    ['PENDING', 'claimed_at = now()', 'outbox_claimed_at_only_when_claimed_or_published'],
    ['PENDING', "claimed_by = 'me'", 'outbox_claimed_fields_exactly_when_claimed'],
    ['PENDING', 'locked_until = now()', 'outbox_claimed_fields_exactly_when_claimed'],
    ['PENDING', 'published_at = now()', 'outbox_published_at_exactly_when_published'],
    ['PENDING', 'dead_at = now()', 'outbox_dead_at_exactly_when_dead'],
    ['PENDING', 'parked = true', 'outbox_parked_only_when_dead'],
    ['PENDING', "headers = '[]'", 'outbox_headers_are_an_object'],
    ['PENDING', "history = '{}'", 'outbox_history_is_an_array'],
    ['PENDING', 'attempts = -1', 'outbox_attempts_in_range'],
    ['PENDING', 'attempts = 1000001', 'outbox_attempts_in_range'],
    ['PENDING', 'expiries = -1', 'outbox_expiries_in_range'],
    ['PENDING', 'expiries = 1000001', 'outbox_expiries_in_range'],
    ['CLAIMED', 'claimed_by = null', 'outbox_claimed_fields_exactly_when_claimed'],
    ['CLAIMED', 'claimed_at = null', 'outbox_claimed_at_only_when_claimed_or_published'],
    ['CLAIMED', "published_by = 'me'", 'outbox_published_by_only_when_published'],
    ['CLAIMED', 'locked_until = null', 'outbox_claimed_fields_exactly_when_claimed'],
    ['CLAIMED', 'parked = true', 'outbox_parked_only_when_dead'],
    ['PUBLISHED', 'claimed_at = now()', 'outbox_claimed_at_only_when_claimed_or_published'],
    ['PUBLISHED', "published_by = 'me'", 'outbox_claimed_at_only_when_claimed_or_published'],
    ['PUBLISHED', 'published_at = null', 'outbox_published_at_exactly_when_published'],
    ['PUBLISHED', 'parked = true', 'outbox_parked_only_when_dead'],
    ['DEAD', 'dead_at = null', 'outbox_dead_at_exactly_when_dead'],
    ['DEAD', 'locked_until = now()', 'outbox_claimed_fields_exactly_when_claimed'],
  ] as const)('LIFE-01: a %s event refuses %s', async (status, set, constraint) => {
    await eventIn(status)
    await expect(change(set)).rejects.toMatchObject({ code: '23514', constraint })
  })

  it('LIFE-04: available_at is set in every state', async () => {
    for (const status of STATUSES) {
      await db.query({ text: 'truncate leasehold.outbox restart identity' })
      await eventIn(status)
      await expect(change('available_at = null')).rejects.toMatchObject({ code: '23502' })
    }
  })

  it.each([
    ['attempts', '2147483647', 'outbox_attempts_in_range'],
    ['expiries', '2147483647', 'outbox_expiries_in_range'],
    ['lock_token', '-1', 'outbox_lock_token_is_not_negative'],
    ['claimed_by', "'me'", 'outbox_claimed_fields_exactly_when_claimed'],
    ['headers', "'5'", 'outbox_headers_are_an_object'],
  ])('LIFE-01: an event with %s = %s cannot be inserted', async (column, value, constraint) => {
    await expect(insert({ [column]: value })).rejects.toMatchObject({ constraint })
  })

  it('LIFE-08: a dead event may be parked, and a replay takes that back', async () => {
    await eventIn('DEAD')
    await change('parked = true')
    await expect(change("status = 'PENDING', dead_at = null")).rejects.toMatchObject({
      constraint: 'outbox_parked_only_when_dead',
    })
    await change(FIELDS.PENDING)
    expect(await statuses()).toEqual(['PENDING'])
  })
})

describe('the limits of a new event', () => {
  const bytes = (n: number): string => `repeat('x', ${n})`
  // As JSON text a string has two quotes more, and an object of one header {"h": ""} nine characters more.
  const payload = (n: number): string => `to_jsonb(${bytes(n - 2)})`
  /** Objects inside each other: this many, around a number. */
  const nested = (n: number): string => `(repeat('{"a":', ${n}) || 1 || repeat('}', ${n}))::jsonb`
  const headers = (n: number): string => `jsonb_build_object('h', ${bytes(n - 9)})`

  async function insertOnly(column: string, value: string): Promise<void> {
    const all: Record<string, string> = { event_type: "'test.happened'", payload: "'{}'", [column]: value }
    await db.query({
      text: `insert into leasehold.outbox (${Object.keys(all).join(', ')}) values (${Object.values(all).join(', ')})`,
    })
  }

  it.each([
    ['event_type', "''", '23514', 'the event_type has 0 bytes, and must have 1 to 255'],
    ['event_type', bytes(256), '23514', 'the event_type has 256 bytes, and must have 1 to 255'],
    [
      'ordering_key',
      "''",
      '23514',
      'the ordering_key of a test.happened event has 0 bytes, and must have 1 to 1024',
    ],
    ['ordering_key', bytes(1025), '23514', 'has 1025 bytes, and must have 1 to 1024'],
    ['ordering_key', "repeat('é', 513)", '23514', 'has 1026 bytes, and must have 1 to 1024'],
    ['payload', payload(262_145), '54000', 'has 262145 bytes, and at most 262144 are allowed'],
    ['headers', headers(16_385), '54000', 'have 16385 bytes, and at most 16384 are allowed'],
    ['max_attempts', '0', '23514', 'max_attempts of a test.happened event is 0, and must be at least 1'],
    [
      'available_at',
      "'infinity'",
      '23514',
      'available_at of a test.happened event is infinity, and must be in the years 1 to 9999',
    ],
    ['available_at', "'10000-01-01'", '23514', 'must be in the years 1 to 9999'],
    [
      'created_at',
      "'-infinity'",
      '23514',
      'created_at of a test.happened event is -infinity, and must be in the years 1 to 9999',
    ],
    ['created_at', "'294000-01-01'", '23514', 'must be in the years 1 to 9999'],
    ['created_at', "'0001-12-31 BC'", '23514', 'must be in the years 1 to 9999'],
    [
      'payload',
      nested(6_000),
      '54000',
      'the payload of a test.happened event is nested more than 100 levels',
    ],
    ['payload', nested(101), '54000', 'nested more than 100 levels'],
    ['headers', `jsonb_build_object('h', ${nested(100)})`, '54000', 'nested more than 100 levels'],
  ])(
    'LIFE-18: an event with %s = %s is refused, with the field, its value and the remedy',
    async (column, value, code, message) => {
      await expect(insertOnly(column, value)).rejects.toMatchObject({
        code,
        column,
        table: 'outbox',
        message: expect.stringContaining(message),
        hint: expect.any(String),
      })
      expect(await count()).toBe(0)
    },
  )

  it('LIFE-18: numbers with many digits count by their text, not by their stored size', async () => {
    const outcome = insertOnly('payload', "'[1e131000, 1e131000, 1e131000]'")
    await expect(outcome).rejects.toMatchObject({ column: 'payload', code: '54000' })
  })

  it.each([
    ['event_type', bytes(255)],
    ['ordering_key', bytes(1024)],
    ['payload', payload(262_144)],
    ['payload', nested(100)],
    ['headers', headers(16_384)],
    ['created_at', "'9999-12-31 23:59:59.999999+00'"],
    ['created_at', "'0001-01-01 00:00+00'"],
    ['max_attempts', '1'],
    ['max_attempts', 'null'],
  ])('LIFE-18: an event with %s = %s is accepted', async (column, value) => {
    await insertOnly(column, value)
    expect(await count()).toBe(1)
  })

  it('LIFE-18: 8 events with 60 MB of headers are refused at INSERT', async () => {
    const text = `insert into leasehold.outbox (event_type, payload, headers)
      select 'test.happened', '{}', jsonb_build_object('h', repeat('x', 60 * 1024 * 1024)) from generate_series(1, 8)`
    await expect(db.query({ text })).rejects.toMatchObject({ column: 'headers', code: '54000' })
    expect(await count()).toBe(0)
  })

  it('LIFE-18: the size of a payload can be read without reading the payload, because it is not compressed', async () => {
    await insert({ ordering_key: "'k'" })
    await change(`payload = ${payload(200_000)}`)
    const { rows } = await db.query<{ size: number }>({
      text: 'select pg_column_size(payload) as size from leasehold.outbox',
    })
    expect(rows[0]?.size).toBeGreaterThan(199_000)
  })
})

describe('a session that applies the changes of another server', () => {
  async function replicated(columns: string, values: string, then = 'select 1'): Promise<void> {
    await db.transaction(async (tx) => {
      await tx.query({ text: 'set local session_replication_role = replica' })
      await tx.query({ text: `insert into leasehold.outbox (${columns}) values (${values})` })
      await tx.query({ text: then })
    })
  }

  it('LIFE-01: it refuses fields that do not belong to the state, in an INSERT and in an UPDATE', async () => {
    const refused = { code: '23514', constraint: 'outbox_published_at_exactly_when_published' }
    await expect(replicated('event_type, payload, published_at', "'a', '1', now()")).rejects.toMatchObject(
      refused,
    )
    const late = 'update leasehold.outbox set published_at = now()'
    await expect(replicated('event_type, payload', "'a', '1'", late)).rejects.toMatchObject(refused)
    expect(await count()).toBe(0)
  })

  it('LIFE-18: it takes what the other server has accepted: an event past a limit, and any change of state', async () => {
    await replicated('event_type, payload', "'', '1'", `update leasehold.outbox set ${FIELDS.DEAD}`)
    expect(await statuses()).toEqual(['DEAD'])
  })
})

describe('a restored dump', () => {
  it('LIFE-18: events in every state can be inserted as they are', async () => {
    for (const status of STATUSES) await addEventIn(status)
    await change("attempts = 2, expiries = 1, lock_token = lock_token + 3, last_error = 'before'")
    const before = await all()
    expect(before.map(({ status }) => status)).toEqual([...STATUSES])
    await db.query({ text: 'create table public.dumped as select * from leasehold.outbox' })
    try {
      await db.query({ text: 'truncate leasehold.outbox' })
      await db.query({ text: 'insert into leasehold.outbox select * from public.dumped' })
      expect(await all()).toEqual(before)
    } finally {
      await db.query({ text: 'drop table public.dumped' })
    }
  })

  async function addEventIn(status: Status): Promise<void> {
    await insert()
    const { rows } = await db.query<{ id: string }>({
      text: 'select max(id)::text as id from leasehold.outbox',
    })
    const only = `where id = ${rows[0]?.id}`
    if (status !== 'PENDING')
      await db.query({ text: `update leasehold.outbox set ${FIELDS.CLAIMED} ${only}` })
    if (status === 'PUBLISHED' || status === 'DEAD') {
      const parked = status === 'DEAD' ? ', parked = true' : ''
      await db.query({ text: `update leasehold.outbox set ${FIELDS[status]}${parked} ${only}` })
    }
  }

  async function all(): Promise<readonly Readonly<Record<string, unknown>>[]> {
    return (await db.query({ text: 'select * from leasehold.outbox order by id' })).rows
  }
})

describe('the indexes', () => {
  it('LIFE-13: two events of one ordering key cannot be in flight at once', async () => {
    await insert({ ordering_key: "'a'" })
    await insert({ ordering_key: "'a'" })
    await expect(change(FIELDS.CLAIMED)).rejects.toMatchObject({
      code: '23505',
      constraint: 'outbox_in_flight',
    })
  })

  it('LIFE-13: events without an ordering key, and of different keys, can be in flight at once', async () => {
    for (const key of ['null', 'null', "'a'", "'b'"]) await insert({ ordering_key: key })
    await change(FIELDS.CLAIMED)
    expect(await statuses()).toEqual(['CLAIMED', 'CLAIMED', 'CLAIMED', 'CLAIMED'])
  })

  it('LIFE-18: an event id cannot be written twice', async () => {
    const eventId = "'0190b3a0-0000-7000-8000-00000000000a'"
    await insert({ event_id: eventId })
    await expect(insert({ event_id: eventId })).rejects.toMatchObject({ constraint: 'outbox_event_id' })
  })

  it('no index mentions a column that a renewal changes, so that renewals are HOT updates', async () => {
    const { rows } = await db.query<{ name: string }>({
      text: `select distinct a.attname as name
        from pg_index as i
        join pg_depend as d on d.objid = i.indexrelid and d.refobjid = i.indrelid
        join pg_attribute as a on a.attrelid = i.indrelid and a.attnum = d.refobjsubid
        where i.indrelid = 'leasehold.outbox'::regclass`,
    })
    const indexed = rows.map(({ name }) => name)
    expect(indexed).toEqual(expect.arrayContaining(['status', 'ordering_key', 'expiries']))
    expect(indexed).not.toContain('locked_until')
    expect(indexed).not.toContain('claimed_by')
  })
})

describe('the roles', () => {
  async function as(role: string, text: string): Promise<readonly Readonly<Record<string, unknown>>[]> {
    return db.transaction(async (tx) => {
      await tx.query({ text: `set local role leasehold_${role}` })
      return (await tx.query({ text })).rows
    })
  }
  const denied = { code: 'PERMISSION_DENIED' }
  const outbox = 'leasehold.outbox'

  it('a producer can call enqueue(), also for an event that exists', async () => {
    const call = `select leasehold.enqueue('a', '1', 'k', event_id => '0190b3a0-0000-7000-8000-00000000000a') as id`
    expect(await as('producer', call)).toEqual([{ id: '1' }])
    expect(await as('producer', call)).toEqual([{ id: '1' }])
    expect(await count()).toBe(1)
  })

  it('a producer can insert the columns of a producer, and learn the id', async () => {
    const text = `insert into ${outbox} (bucket, event_id, event_type, ordering_key, payload, headers, available_at, max_attempts)
      values (0, leasehold.new_event_id(), 'a', 'k', '1', '{}', now(), 5)
      on conflict do nothing returning id, event_id`
    expect(await as('producer', text)).toMatchObject([{ id: '1' }])
  })

  it.each([
    ['status', "'PENDING'"],
    ['attempts', '3'],
    ['expiries', '3'],
    ['lock_token', '9223372036854775807'],
    ['created_at', 'now()'],
    ['claimed_by', "'me'"],
    ['published_at', 'now()'],
    ['dead_at', 'now()'],
    ['parked', 'true'],
    ['id', '7'],
  ])('a producer cannot set %s', async (column, value) => {
    const text = `insert into ${outbox} (event_type, payload, ${column}) values ('a', '1', ${value})`
    await expect(as('producer', text)).rejects.toMatchObject(denied)
  })

  it.each([
    `select payload from ${outbox}`,
    `select headers from ${outbox}`,
    `insert into ${outbox} (event_type, payload) values ('a', '1') returning payload`,
    `update ${outbox} set payload = '2'`,
    `delete from ${outbox}`,
    'select from leasehold.audit',
    'select from leasehold.workers',
  ])('a producer cannot read payloads or change anything: %s', async (text) => {
    await insert()
    await expect(as('producer', text)).rejects.toMatchObject(denied)
  })

  it('a worker can claim and remove events, but not write any', async () => {
    await insert()
    await as('worker', `select * from ${outbox} for update skip locked`)
    await as('worker', `update ${outbox} set ${FIELDS.CLAIMED}`)
    await as('worker', `update ${outbox} set ${FIELDS.PUBLISHED}`)
    await as('worker', `delete from ${outbox}`)
    expect(await count()).toBe(0)
    const write = `insert into ${outbox} (event_type, payload) values ('a', '1')`
    await expect(as('worker', write)).rejects.toMatchObject(denied)
  })

  it('a reader can read events and change nothing', async () => {
    await insert()
    expect(await as('reader', `select payload from ${outbox}`)).toEqual([{ payload: {} }])
    expect(await as('reader', 'select version from leasehold.migrations order by 1')).toHaveLength(7)
    for (const text of [`update ${outbox} set payload = '2'`, `delete from ${outbox}`]) {
      await expect(as('reader', text)).rejects.toMatchObject(denied)
    }
    const entry = `insert into leasehold.audit (principal, action) values ('me', 'outbox.replay')`
    await expect(as('reader', entry)).rejects.toMatchObject(denied)
  })

  it('LIFE-09: an operator can replay an event and record it in the audit, which no role can change', async () => {
    await eventIn('DEAD')
    await as('operator', `update ${outbox} set ${FIELDS.PENDING}`)
    expect(await statuses()).toEqual(['PENDING'])
    await as('operator', `insert into leasehold.audit (principal, action) values ('me', 'outbox.replay')`)
    await as('operator', `select leasehold.wake('outbox')`)
    for (const text of ['delete from leasehold.audit', "update leasehold.audit set principal = 'you'"]) {
      await expect(as('operator', text)).rejects.toMatchObject(denied)
    }
  })
})
