import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { records, write } from '../../test/support/running-relay.ts'
import { openLeaseStore } from '../lease/index.ts'
import { openDatabase } from '../postgres/database.ts'
import { leaseConformance } from '../testing/index.ts'
import { outboxTable } from './table.ts'
import { STATUSES, type Status, TRANSITIONS } from './transitions.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
beforeEach(async () => db.query({ text: 'truncate leasehold.outbox restart identity' }))
afterAll(async () => db.close())

describe('LIFE-16: the outbox is a lease table like any other', () => {
  const cases = leaseConformance({
    db,
    table: outboxTable(),
    empty: async () => {
      await db.query({ text: 'truncate leasehold.outbox' })
    },
    insert: async (count) => {
      const { rows } = await db.query<{ id: string }>({
        text: `insert into leasehold.outbox (event_type, payload, ordering_key)
          select 'test', '{}', case when n % 2 = 0 then n::text end from generate_series(1, $1::int) as n returning id`,
        values: [count],
      })
      return rows.map(({ id }) => id)
    },
    final: { outcome: 'done' },
    bucket: 0,
  })
  it.each(cases.map(({ name, run }) => [name, run] as const))('%s', async (_, run) => {
    await expect(run()).resolves.toBeUndefined()
  })
})

/** Brings an event into a state the way the state machine allows. */
const PATHS: Readonly<Record<Status, readonly string[]>> = {
  PENDING: [],
  CLAIMED: [
    "status = 'CLAIMED', available_at = null, claimed_at = now(), claimed_by = 'r', locked_until = now(), lock_token = lock_token + 1",
  ],
  PUBLISHED: [
    "status = 'PUBLISHED', published_at = now(), claimed_at = null, claimed_by = null, locked_until = null",
  ],
  DEAD: ["status = 'DEAD', claimed_at = null, claimed_by = null, locked_until = null"],
}

async function eventIn(status: Status): Promise<void> {
  await write(db, null)
  const steps =
    status === 'PENDING' || status === 'CLAIMED' ? PATHS[status] : [...PATHS.CLAIMED, ...PATHS[status]]
  for (const set of steps) await change(set)
}

async function change(set: string): Promise<void> {
  await db.query({ text: `update leasehold.outbox set ${set}` })
}

/** The fields of a state, whatever state they come from. */
const FIELDS: Readonly<Record<Status, string>> = {
  PENDING:
    "status = 'PENDING', available_at = now(), published_at = null, claimed_at = null, claimed_by = null, locked_until = null",
  CLAIMED:
    "status = 'CLAIMED', available_at = null, published_at = null, claimed_at = now(), claimed_by = 'r', locked_until = now(), lock_token = lock_token + 1",
  PUBLISHED:
    "status = 'PUBLISHED', available_at = null, published_at = now(), claimed_at = null, claimed_by = null, locked_until = null",
  DEAD: "status = 'DEAD', available_at = null, published_at = null, claimed_at = null, claimed_by = null, locked_until = null",
}

describe('LIFE-02: the database refuses what the state machine does not know', () => {
  const pairs = STATUSES.flatMap((from) =>
    STATUSES.filter((to) => to !== from).map((to) => [from, to] as const),
  )
  const isLegal = ([from, to]: readonly [Status, Status]): boolean => TRANSITIONS[from][to] !== undefined

  it.each(pairs.filter(isLegal))('%s → %s can happen', async (from, to) => {
    await eventIn(from)
    await change(FIELDS[to])
    expect((await records(db))[0]?.status).toBe(to)
  })

  it.each(pairs.filter((pair) => !isLegal(pair)))('%s → %s cannot', async (from, to) => {
    await eventIn(from)
    await expect(change(FIELDS[to])).rejects.toMatchObject({
      message: `event 1 cannot go from ${from} to ${to}`,
      code: '23514',
      detail:
        'Legal are PENDING → CLAIMED, CLAIMED → PUBLISHED, CLAIMED → PENDING, CLAIMED → DEAD, PUBLISHED → PENDING, DEAD → PENDING.',
    })
    expect((await records(db))[0]?.status).toBe(from)
  })

  it('refuses another id or bucket to an event in flight, where nobody would find it', async () => {
    await eventIn('CLAIMED')
    await expect(change('bucket = 7')).rejects.toThrow('is in flight: its id and its bucket stay')
    await expect(change('id = id + 1000')).rejects.toThrow('is in flight: its id and its bucket stay')
    await expect(change("locked_until = now() + interval '1 minute'")).resolves.toBeUndefined()
  })

  it('LIFE-01: there are four states, and no other', async () => {
    await eventIn('CLAIMED')
    await expect(change("status = 'PROCESSING'")).rejects.toThrow('cannot go from CLAIMED to PROCESSING')
    await expect(change('status = null')).rejects.toThrow(/null|cannot go/)
  })

  it('the message names exactly the transitions of transitions.ts', async () => {
    const legal = STATUSES.flatMap((from) =>
      STATUSES.filter((to) => TRANSITIONS[from][to] !== undefined).map((to) => `${from} → ${to}`),
    )
    await eventIn('PUBLISHED')
    const refusal: unknown = await change(FIELDS.DEAD).catch((error: unknown) => error)
    const { detail } = refusal as { detail: string }
    const named = detail.replace(/^Legal are |\.$/g, '').split(', ')
    expect(new Set(named)).toEqual(new Set(legal))
  })

  it('an event begins as PENDING', async () => {
    await expect(
      db.query({
        text: "insert into leasehold.outbox (event_type, payload, status, available_at, published_at) values ('t', '{}', 'PUBLISHED', null, now())",
      }),
    ).rejects.toThrow('an event begins as PENDING, not as PUBLISHED')
  })

  it.each([
    [
      'lock_token',
      '9223372036854775807',
      'an event begins with the lock_token 0, not with 9223372036854775807',
    ],
    ['available_at', "'infinity'", 'available_at and created_at are moments, not infinity'],
    ['created_at', "'-infinity'", 'available_at and created_at are moments, not -infinity'],
    ['ordering_key', "''", 'the ordering_key is empty'],
  ])('an event does not begin with %s = %s', async (column, value, message) => {
    const text = `insert into leasehold.outbox (event_type, payload, ${column}) values ('t', '{}', ${value})`
    await expect(db.query({ text })).rejects.toThrow(message)
  })

  it.each(['', 'x'.repeat(256)])(
    'an event does not begin with a type of no or too many characters',
    async (type) => {
      const text = "insert into leasehold.outbox (event_type, payload) values ($1, '{}')"
      await expect(db.query({ text, values: [type] })).rejects.toThrow(
        `the event_type has ${type.length} bytes`,
      )
    },
  )

  it('a token never goes down, and grows with every claim', async () => {
    await eventIn('CLAIMED')
    await expect(change('lock_token = 0')).rejects.toThrow('never goes down: 0 cannot follow 1')
    await change(FIELDS.PENDING)
    await expect(change('lock_token = 0')).rejects.toThrow('never goes down')
    await expect(change(FIELDS.CLAIMED.replace(', lock_token = lock_token + 1', ''))).rejects.toThrow(
      'grows with every claim',
    )
  })
})

describe('LIFE-01: the fields of a state are there exactly in that state', () => {
  it.each([
    ['PENDING', 'available_at = null', 'outbox_available_at_exactly_when_pending'],
    ['PENDING', 'claimed_at = now()', 'outbox_claimed_fields_exactly_when_claimed'],
    ['PENDING', "claimed_by = 'me'", 'outbox_claimed_fields_exactly_when_claimed'],
    ['PENDING', 'locked_until = now()', 'outbox_claimed_fields_exactly_when_claimed'],
    ['PENDING', 'published_at = now()', 'outbox_published_at_exactly_when_published'],
    ['PENDING', 'parked = true', 'outbox_parked_only_when_dead'],
    ['CLAIMED', 'claimed_by = null', 'outbox_claimed_fields_exactly_when_claimed'],
    ['CLAIMED', 'available_at = now()', 'outbox_available_at_exactly_when_pending'],
    ['CLAIMED', 'behind = true', 'outbox_behind_only_when_pending'],
    ['PENDING', 'behind = true', 'outbox_behind_only_when_pending'],
    ['PENDING', "headers = '[]'", 'outbox_headers_are_an_object'],
    ['PUBLISHED', 'published_at = null', 'outbox_published_at_exactly_when_published'],
    ['DEAD', 'locked_until = now()', 'outbox_claimed_fields_exactly_when_claimed'],
  ] as const)('%s with %s is refused', async (status, set, constraint) => {
    await eventIn(status)
    await expect(change(set)).rejects.toMatchObject({ constraint })
  })
})

it('LIFE-13: the database keeps two events of a key from being in flight at once', async () => {
  await write(db, 'a', 'a')
  await expect(change(FIELDS.CLAIMED)).rejects.toMatchObject({ constraint: 'outbox_in_flight' })
})

it.each([
  ['block', '2', 'PENDING', false],
  ['skip', '2', 'PENDING', false],
  ['park', '2', 'PENDING', false],
  ['park', 'null', 'PENDING', false],
  ['block', '1', 'DEAD', false],
  ['skip', '1', 'DEAD', false],
  ['park', '1', 'DEAD', true],
] as const)(
  'LIFE-06 LIFE-08: with %s and max_attempts %s, an event whose relay died is %s',
  async (onFailure, maxAttempts, status, parked) => {
    await write(db, 'a')
    await change(`max_attempts = ${maxAttempts}`)
    const store = await openLeaseStore(db, outboxTable({ onFailure }), { owner: 'r', bucket: 0 })
    await store.claim({ limit: 1, leaseMs: 60_000 })
    await change("locked_until = now() - interval '1 second'")
    expect(await store.reap()).toHaveLength(1)
    expect(await records(db)).toMatchObject([
      { status, parked, attempts: 1, last_error: 'the lease expired: its relay died, or lost the database' },
    ])
  },
)

describe('no event that is in flight is lost sight of', () => {
  it.each([
    ['by hand', FIELDS.CLAIMED],
    ['by hand, a second time', `${FIELDS.CLAIMED}, attempts = 3`],
  ])('claimed %s, it is noted and taken back', async (_, claim) => {
    const store = await openLeaseStore(db, outboxTable(), { owner: 'r', bucket: 0 })
    await eventIn('CLAIMED')
    await change(FIELDS.PENDING)
    await store.reap()
    await change(claim)
    expect((await store.reap()).map(({ id }) => id)).toEqual(['1'])
    expect((await records(db))[0]?.status).toBe('PENDING')
  })

  it('claiming and publishing an event without a key can be HOT updates: no index mentions what they change', async () => {
    const { rows } = await db.query<{ name: string }>({
      text: `select distinct a.attname as name
        from pg_index as i
        join pg_depend as d on d.objid = i.indexrelid and d.refobjid = i.indrelid
        join pg_attribute as a on a.attrelid = i.indrelid and a.attnum = d.refobjsubid
        where i.indrelid = 'leasehold.outbox'::regclass`,
    })
    const indexed = rows.map(({ name }) => name)
    expect(indexed).toEqual(expect.arrayContaining(['indexed_status', 'parked', 'ordering_key']))
    const { writes, outcomes, lease, notes } = outboxTable()
    const written = [...Object.keys(writes.claim), ...Object.keys(outcomes.done.set), ...Object.values(lease)]
    const changed = new Set<string | undefined>([...written, notes?.column, 'behind', 'status'])
    expect(indexed.filter((column) => changed.has(column))).toEqual([])
    for (const status of STATUSES) {
      await db.query({ text: 'truncate leasehold.outbox restart identity' })
      await eventIn(status)
      const { rows: events } = await db.query({ text: 'select indexed_status from leasehold.outbox' })
      expect(events).toEqual([{ indexed_status: status === 'DEAD' ? 'DEAD' : null }])
    }
  })
})
