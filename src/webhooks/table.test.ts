import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { openDatabase } from '../postgres/database.ts'
import { DELIVERY_STATUSES, type DeliveryStatus, TRANSITIONS } from './transitions.ts'

/* The tables as SQL: what PostgreSQL itself refuses and allows, whatever program writes to them. */

const { url } = useDatabase()
const db = openDatabase({ url })
const ENDPOINT = '00000000-0000-7000-8000-00000000000a'
const OTHER_ENDPOINT = '00000000-0000-7000-8000-00000000000b'
const EVENT = '0190b3a0-0000-7000-8000-00000000000a'

beforeEach(async () =>
  db.query({ text: 'truncate leasehold.webhook_outbox, leasehold.webhook_endpoints restart identity' }),
)
afterAll(async () => db.close())

type Columns = Readonly<Record<string, string>>

async function insertInto(table: string, columns: Columns): Promise<void> {
  const [names, values] = [Object.keys(columns).join(', '), Object.values(columns).join(', ')]
  await db.query({ text: `insert into leasehold.${table} (${names}) values (${values})` })
}

async function insert(columns: Columns = {}): Promise<void> {
  const usual = { endpoint_id: `'${ENDPOINT}'`, event_type: "'test.happened'", body: "'{}'" }
  await insertInto('webhook_outbox', { ...usual, ...columns })
}

async function insertEndpoint(columns: Columns = {}): Promise<void> {
  await insertInto('webhook_endpoints', { url: "'https://example.com'", secret: "'s'", ...columns })
}

async function change(set: string): Promise<void> {
  await db.query({ text: `update leasehold.webhook_outbox set ${set}` })
}

async function all(): Promise<readonly Readonly<Record<string, unknown>>[]> {
  const text = 'select * from leasehold.webhook_outbox order by id'
  return (await db.query({ text })).rows
}

async function statuses(): Promise<unknown[]> {
  return (await all()).map((row) => row['delivery_status'])
}

/** The assignments that make a delivery consistent in a state, whatever state it comes from. */
const FIELDS: Readonly<Record<DeliveryStatus, string>> = {
  pending: "delivery_status = 'pending', delivered_at = null, failed_at = null",
  delivered:
    "delivery_status = 'delivered', delivered_at = now(), failed_at = null, lease_owner = null, lease_until = null",
  failed:
    "delivery_status = 'failed', failed_at = now(), delivered_at = null, lease_owner = null, lease_until = null",
}
const LEASED = "lease_owner = 'd', lease_until = now(), lease_token = lease_token + 1"

async function deliveryIn(status: DeliveryStatus): Promise<void> {
  await insert()
  if (status !== 'pending') await change(FIELDS[status])
}

describe('the transitions of a delivery', () => {
  const pairs = DELIVERY_STATUSES.flatMap((from) =>
    DELIVERY_STATUSES.filter((to) => to !== from).map((to) => [from, to] as const),
  )
  const isLegal = ([from, to]: readonly [DeliveryStatus, DeliveryStatus]): boolean =>
    TRANSITIONS[from][to] !== undefined
  const legal = pairs.filter(isLegal).map(([from, to]) => `${from} → ${to}`)

  it.each(pairs.filter(isLegal))(
    'WH-FR-004-AC3: the database allows a change from %s to %s',
    async (from, to) => {
      await deliveryIn(from)
      await change(FIELDS[to])
      expect(await statuses()).toEqual([to])
    },
  )

  it.each(pairs.filter((pair) => !isLegal(pair)))(
    'WH-FR-004-AC3: the database refuses a change from %s to %s and names the legal transitions',
    async (from, to) => {
      await deliveryIn(from)
      await expect(change(FIELDS[to])).rejects.toMatchObject({
        message: `delivery 1 cannot go from ${from} to ${to}`,
        code: '23514',
        column: 'delivery_status',
        detail: `Legal are ${legal.join(', ')}.`,
      })
      expect(await statuses()).toEqual([from])
    },
  )

  it.each(DELIVERY_STATUSES)(
    'WH-FR-004-AC3: the database allows changes of other columns while a delivery stays %s',
    async (status) => {
      await deliveryIn(status)
      await change(`${FIELDS[status]}, last_error = 'an operator was here'`)
      expect(await all()).toMatchObject([{ delivery_status: status, last_error: 'an operator was here' }])
    },
  )

  it('WH-FR-004-AC3: the database accepts three states and refuses every other', async () => {
    await deliveryIn('pending')
    await expect(change("delivery_status = 'sending'")).rejects.toThrow('cannot go from pending to sending')
    await expect(change('delivery_status = null')).rejects.toThrow('cannot go from pending to <NULL>')
    await expect(insert({ delivery_status: "'sending'" })).rejects.toMatchObject({
      constraint: 'webhook_outbox_status_is_known',
    })
  })

  it('D3: the database refuses a lease_token that decreases, also in a replay', async () => {
    await insert({ lease_token: '3' })
    await expect(change('lease_token = 2')).rejects.toThrow('never goes down: 2 cannot follow 3')
    await change(FIELDS.failed)
    await expect(change(`${FIELDS.pending}, lease_token = 0`)).rejects.toMatchObject({
      message: expect.stringContaining('never goes down'),
      column: 'lease_token',
    })
  })
})

describe('the fields of a delivery', () => {
  it.each([
    ['pending', 'delivered_at = now()', 'webhook_outbox_delivered_at_exactly_when_delivered'],
    ['pending', 'failed_at = now()', 'webhook_outbox_failed_at_exactly_when_failed'],
    ['pending', "lease_owner = 'me'", 'webhook_outbox_lease_is_whole'],
    ['pending', 'lease_until = now()', 'webhook_outbox_lease_is_whole'],
    ['pending', "headers = '[]'", 'webhook_outbox_headers_are_an_object'],
    ['pending', "history = '{}'", 'webhook_outbox_history_is_an_array'],
    ['pending', 'attempts = -1', 'webhook_outbox_attempts_in_range'],
    ['pending', 'attempts = 1000001', 'webhook_outbox_attempts_in_range'],
    ['pending', 'expiries = 1000001', 'webhook_outbox_expiries_in_range'],
    ['delivered', 'delivered_at = null', 'webhook_outbox_delivered_at_exactly_when_delivered'],
    ['delivered', "lease_owner = 'me', lease_until = now()", 'webhook_outbox_leased_only_when_pending'],
    ['failed', 'failed_at = null', 'webhook_outbox_failed_at_exactly_when_failed'],
    ['failed', "lease_owner = 'me', lease_until = now()", 'webhook_outbox_leased_only_when_pending'],
  ] as const)('WH-FR-004-AC1: a %s delivery refuses %s', async (status, set, constraint) => {
    await deliveryIn(status)
    await expect(change(set)).rejects.toMatchObject({ code: '23514', constraint })
  })

  it.each([
    ['attempts', '2147483647', 'webhook_outbox_attempts_in_range'],
    ['lease_token', '-1', 'webhook_outbox_lease_token_is_not_negative'],
    ['lease_owner', "'me'", 'webhook_outbox_lease_is_whole'],
  ])('WH-FR-004-AC1: a delivery with %s = %s cannot be inserted', async (column, value, constraint) => {
    await expect(insert({ [column]: value })).rejects.toMatchObject({ constraint })
  })

  it('WH-NFR-002: two deliveries of one ordering key cannot be in flight to an endpoint at once', async () => {
    await insert({ ordering_key: "'k'" })
    await insert({ ordering_key: "'k'" })
    await expect(change(LEASED)).rejects.toMatchObject({
      code: '23505',
      constraint: 'webhook_outbox_in_flight',
    })
  })

  it('WH-NFR-002: deliveries without a key, of other keys and to other endpoints can be in flight at once', async () => {
    await insert()
    await insert()
    await insert({ ordering_key: "'k'" })
    await insert({ ordering_key: "'l'" })
    await insert({ ordering_key: "'k'", endpoint_id: `'${OTHER_ENDPOINT}'` })
    await change(LEASED)
    expect((await all()).map((row) => row['lease_owner'])).toEqual(['d', 'd', 'd', 'd', 'd'])
  })

  it('a second delivery of one event to one endpoint is refused', async () => {
    await insert({ event_id: `'${EVENT}'` })
    await insert({ event_id: `'${EVENT}'`, endpoint_id: `'${OTHER_ENDPOINT}'` })
    await expect(insert({ event_id: `'${EVENT}'` })).rejects.toMatchObject({
      constraint: 'webhook_outbox_once_for_each_endpoint',
    })
  })

  it('WH-NFR-001: no index mentions lease_until, so that renewals are HOT updates', async () => {
    const { rows } = await db.query<{ name: string }>({
      text: `select distinct a.attname as name
        from pg_index as i
        join pg_depend as d on d.objid = i.indexrelid and d.refobjid = i.indrelid
        join pg_attribute as a on a.attrelid = i.indrelid and a.attnum = d.refobjsubid
        where i.indrelid = 'leasehold.webhook_outbox'::regclass`,
    })
    const indexed = rows.map(({ name }) => name)
    expect(indexed).toEqual(
      expect.arrayContaining(['delivery_status', 'ordering_key', 'lease_owner', 'expiries']),
    )
    expect(indexed).not.toContain('lease_until')
  })
})

describe('the limits of a new delivery', () => {
  const bytes = (n: number): string => `repeat('x', ${n})`
  // As JSON text an object of one header {"h": ""} has nine characters more than the value of the header.
  const headers = (n: number): string => `jsonb_build_object('h', ${bytes(n - 9)})`

  /** A number inside this many objects or lists, as text. */
  const nested = (n: number, kind: '{' | '[' = '{'): string =>
    kind === '{'
      ? `(repeat('{"a":', ${n}) || 1 || repeat('}', ${n}))`
      : `(repeat('[', ${n}) || 1 || repeat(']', ${n}))`

  it.each([
    ['event_type', "''", '23514', 'the event_type has 0 bytes, and must have 1 to 255'],
    ['event_type', bytes(256), '23514', 'the event_type has 256 bytes, and must have 1 to 255'],
    ['ordering_key', "''", '23514', 'has 0 bytes, and must have 1 to 1024'],
    ['ordering_key', bytes(1025), '23514', 'has 1025 bytes, and must have 1 to 1024'],
    ['body', bytes(266_241), '54000', 'has 266241 bytes, and at most 266240 are allowed'],
    ['headers', headers(16_385), '54000', 'have 16385 bytes, and at most 16384 are allowed'],
    ['next_attempt_at', "'infinity'", '23514', 'is infinity, and must be in the years 1 to 9999'],
    ['next_attempt_at', "'10000-01-01'", '23514', 'must be in the years 1 to 9999'],
    ['created_at', "'-infinity'", '23514', 'is -infinity, and must be in the years 1 to 9999'],
    ['created_at', "'294000-01-01'", '23514', 'must be in the years 1 to 9999'],
    ['created_at', "'0001-12-31 BC'", '23514', 'must be in the years 1 to 9999'],
    ['headers', `jsonb_build_object('h', ${nested(100)}::jsonb)`, '54000', 'nested more than 100 levels'],
    ['body', nested(102), '54000', 'is nested more than 101 levels deep'],
    ['body', nested(6_000), '54000', 'is nested more than 101 levels deep'],
    ['body', nested(102, '['), '54000', 'is nested more than 101 levels deep'],
  ])(
    'a delivery with %s = %s is refused, with the field, its value and the remedy',
    async (column, value, code, message) => {
      await expect(insert({ [column]: value })).rejects.toMatchObject({
        code,
        column,
        table: 'webhook_outbox',
        message: expect.stringContaining(message),
        hint: expect.any(String),
      })
      expect(await all()).toEqual([])
    },
  )

  it.each([
    ['event_type', bytes(255)],
    ['ordering_key', bytes(1024)],
    ['body', bytes(266_240)],
    ['headers', headers(16_384)],
    ['body', nested(101)],
    // Many brackets that are not nested.
    ['body', `'[' || repeat('{"a": []}, ', 1000) || '1]'`],
    ['created_at', "'9999-12-31 23:59:59.999999+00'"],
    ['created_at', "'0001-01-01 00:00+00'"],
  ])('a delivery with %s = %s is accepted', async (column, value) => {
    await insert({ [column]: value })
    expect(await all()).toHaveLength(1)
  })

  it('WH-FR-004-AC3: deliveries in every state can be inserted as they are, as a restored dump does', async () => {
    await insert({ lease_token: '3', attempts: '2', expiries: '1', history: `'[{"attempt": 1}]'` })
    await insert({ lease_token: '1', lease_owner: "'d'", lease_until: 'now()' })
    await insert({ lease_token: '1', delivery_status: "'delivered'", delivered_at: 'now()' })
    await insert({ lease_token: '9', delivery_status: "'failed'", failed_at: 'now()', attempts: '10' })
    expect(await statuses()).toEqual(['pending', 'pending', 'delivered', 'failed'])
  })
})

describe('webhook_attempts', () => {
  it('webhook_attempts shows each entry of the history as a row, numbered within the delivery', async () => {
    await insert({
      history: `'[{"attempt": 1, "token": 1, "started_at": "2031-02-03T04:05:06.789+00:00", "duration_ms": 12, "status": 500,
        "error_code": "httpStatus", "error": "the endpoint answered 500", "response": "no", "recorded_at": "2031-02-03T04:05:07Z"},
        {"attempt": 2, "token": 9007199254740993, "error_code": "leaseExpired", "recorded_at": "2031-02-03T04:05:08Z"}]'`,
    })
    await insert()
    const { rows } = await db.query({
      text: 'select * from leasehold.webhook_attempts order by delivery_id, id',
    })
    const of = { bucket: 0, delivery_id: '1', endpoint_id: ENDPOINT }
    expect(rows).toEqual([
      {
        ...of,
        id: '1',
        attempt: 1,
        lease_token: '1',
        started_at: new Date('2031-02-03T04:05:06.789Z'),
        duration_ms: 12,
        status: 500,
        error_code: 'httpStatus',
        error: 'the endpoint answered 500',
        response: 'no',
        recorded_at: new Date('2031-02-03T04:05:07Z'),
      },
      {
        ...of,
        id: '2',
        attempt: 2,
        lease_token: '9007199254740993',
        started_at: null,
        duration_ms: null,
        status: null,
        error_code: 'leaseExpired',
        error: null,
        response: null,
        recorded_at: new Date('2031-02-03T04:05:08Z'),
      },
    ])
  })
})

describe('the limits of an endpoint', () => {
  it.each([
    ['rate_per_second', "'NaN'", 'webhook_endpoints_rate_is_finite_and_above_zero'],
    ['rate_per_second', "'Infinity'", 'webhook_endpoints_rate_is_finite_and_above_zero'],
    ['rate_per_second', '0', 'webhook_endpoints_rate_is_finite_and_above_zero'],
    ['rate_per_second', '-1', 'webhook_endpoints_rate_is_finite_and_above_zero'],
    ['concurrency', '0', 'webhook_endpoints_concurrency_in_range'],
    ['concurrency', '10001', 'webhook_endpoints_concurrency_in_range'],
    ['timeout_ms', '0', 'webhook_endpoints_timeout_in_range'],
    ['timeout_ms', '300001', 'webhook_endpoints_timeout_in_range'],
    ['url', "'ftp://example.com'", 'webhook_endpoints_url_is_http'],
    ['headers', "'[]'", 'webhook_endpoints_headers_are_an_object'],
    ['signing', "'v2'", 'webhook_endpoints_signing_is_known'],
    ['previous_secret', "'p'", 'webhook_endpoints_previous_secret_ends'],
    ['enabled', 'false', 'webhook_endpoints_disabled_exactly_when_not_enabled'],
  ])('an endpoint with %s = %s is refused', async (column, value, constraint) => {
    await expect(insertEndpoint({ [column]: value })).rejects.toMatchObject({ code: '23514', constraint })
  })

  it.each([
    ['rate_per_second', 'null'],
    ['rate_per_second', '0.5'],
    ['concurrency', '10000'],
    ['timeout_ms', '300000'],
  ])('an endpoint with %s = %s is accepted', async (column, value) => {
    await expect(insertEndpoint({ [column]: value })).resolves.toBeUndefined()
  })
})

describe('send_webhook()', () => {
  it('send_webhook() writes the ordering key only for ordered endpoints', async () => {
    await insertEndpoint({ id: `'${ENDPOINT}'`, ordered: 'true' })
    await insertEndpoint({ id: `'${OTHER_ENDPOINT}'` })
    const { rows } = await db.query({
      text: `select leasehold.send_webhook('order.paid', '{"id": 1}', ordering_key => 'k') as written`,
    })
    expect(rows).toEqual([{ written: 2 }])
    expect(await all()).toMatchObject([
      { endpoint_id: ENDPOINT, ordering_key: 'k' },
      { endpoint_id: OTHER_ENDPOINT, ordering_key: null },
    ])
  })

  it('send_webhook() refuses an ordering key that is empty or too long, even if no endpoint is ordered', async () => {
    for (const key of ["''", "repeat('k', 1025)"]) {
      const text = `select leasehold.send_webhook('order.paid', '1', ordering_key => ${key})`
      await expect(db.query({ text })).rejects.toThrow('and must have 1 to 1024')
    }
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
  const deliveries = 'leasehold.webhook_outbox'
  const endpoints = 'leasehold.webhook_endpoints'

  it('a producer can send an event, and send it a second time', async () => {
    await insertEndpoint()
    const text = `select leasehold.send_webhook('order.paid', '1', ordering_key => 'k', event_id => '${EVENT}') as written`
    expect(await as('producer', text)).toEqual([{ written: 1 }])
    expect(await as('producer', text)).toEqual([{ written: 0 }])
  })

  it.each([
    `select body from ${deliveries}`,
    `select secret from ${endpoints}`,
    `select headers from ${endpoints}`,
    `select url from ${endpoints}`,
    `select from leasehold.webhook_attempts where error is null`,
    `update ${deliveries} set body = ''`,
    `insert into ${deliveries} (endpoint_id, event_type, body, lease_token) values ('${ENDPOINT}', 'a', '1', 5)`,
    `insert into ${deliveries} (endpoint_id, event_type, body, attempts) values ('${ENDPOINT}', 'a', '1', 5)`,
    `insert into ${deliveries} (endpoint_id, event_type, body, history) values ('${ENDPOINT}', 'a', '1', '[]')`,
  ])('a producer can neither read bodies and secrets nor set the state of a delivery: %s', async (text) => {
    await expect(as('producer', text)).rejects.toMatchObject(denied)
  })

  it('a dispatcher can read secrets, settle deliveries and open the circuit breaker, but not change an endpoint', async () => {
    await insertEndpoint()
    await insert()
    await as('dispatcher', `select secret from ${endpoints}`)
    await as(
      'dispatcher',
      `update ${deliveries} set ${FIELDS.delivered}, history = history || '{"attempt": 1}'::jsonb`,
    )
    await as('dispatcher', `update ${endpoints} set failures = 5, failing_since = now(), open_until = now()`)
    await as('dispatcher', `delete from ${deliveries}`)
    await expect(
      as('dispatcher', `update ${endpoints} set url = 'https://evil.example'`),
    ).rejects.toMatchObject(denied)
  })

  it('WH-NFR-003: a worker that delivers nothing can read no secrets', async () => {
    await insertEndpoint()
    for (const column of ['secret', 'previous_secret', '*'])
      await expect(as('worker', `select ${column} from ${endpoints}`)).rejects.toMatchObject(denied)
  })

  it('WH-NFR-003: a reader can read deliveries, attempts and endpoints, but no secrets', async () => {
    await insertEndpoint()
    await insert({ history: `'[{"attempt": 1}]'` })
    expect(await as('reader', `select body from ${deliveries}`)).toHaveLength(1)
    expect(await as('reader', 'select attempt from leasehold.webhook_attempts')).toEqual([{ attempt: 1 }])
    expect(await as('reader', `select url, enabled from ${endpoints}`)).toHaveLength(1)
    for (const column of ['secret', 'previous_secret', '*']) {
      await expect(as('reader', `select ${column} from ${endpoints}`)).rejects.toMatchObject(denied)
    }
    await expect(as('reader', `update ${deliveries} set body = ''`)).rejects.toMatchObject(denied)
  })

  it('an operator can replay and cancel deliveries and change endpoints', async () => {
    await insertEndpoint()
    await deliveryIn('failed')
    await as('operator', `update ${deliveries} set ${FIELDS.pending}`)
    await as('operator', `update ${deliveries} set ${FIELDS.failed}`)
    await as(
      'operator',
      `update ${endpoints} set previous_secret = secret, previous_secret_until = now(), secret = 't'`,
    )
    await as('operator', `insert into ${endpoints} (url, secret) values ('https://example.com', 's')`)
    await as('operator', `delete from ${endpoints}`)
    expect(await statuses()).toEqual(['failed'])
  })
})
