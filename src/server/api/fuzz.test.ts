/** Malformed requests: none is answered with an error of the server, and none changes anything. */
import { connect } from 'node:net'
import { createServer } from 'node:http'
import { once } from 'node:events'
import fc from 'fast-check'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { jsonSchemaOf, sampleOf, samplePath } from '../../../test/support/api-samples.ts'
import { BASE, useApi } from '../../../test/support/api.ts'
import { checksums } from '../../../test/support/checksums.ts'
import { repeat } from '../../../test/support/lease-model/property.ts'
import { toNodeHandler } from './node.ts'
import { ROUTES } from './resources/index.ts'
import type { Route } from './route.ts'

let clients = 0
const { send, db, keys, api } = useApi({ clientAddress: () => `client ${(clients += 1)}` })

/** Always the same requests, unless LEASEHOLD_SEED and LEASEHOLD_RUNS ask for others. */
const { seed, path, runs: RUNS } = repeat({ LEASEHOLD_SEED: '18', ...process.env }, 2_000)
const REPEAT = { seed, ...(path === undefined ? {} : { path }) }

beforeAll(async () => {
  for (const type of ['order.paid', 'order.sent'])
    await send('POST', '/outbox/events', { body: { type, payload: { type } } })
  await send('POST', '/outbox/events/1/give-up', { body: { reason: 'so that one is dead' } })
})

const NUL = '\u0000'

/** What no field accepts that has a type at all. */
const hostile = fc.oneof(
  fc.constantFrom<unknown>(
    NUL,
    `a${NUL}b`,
    '\ud800',
    'x\udc00y',
    '',
    '   '.repeat(1_000),
    'x'.repeat(3_000),
    null,
    -1,
    0,
    1.5,
    1e308,
    -1e-308,
    2 ** 53,
    [],
    {},
    [[]],
    [null],
    { constructor: { prototype: { polluted: true } } },
    JSON.parse('{"__proto__": {"polluted": true}}'),
    '0001-01-01T00:00:00Z'.repeat(2),
    '2026-02-30T00:00:00Z',
    '99999999999999999999',
    '-1',
    '1e5',
    "' or 1=1 --",
    '../../etc/passwd',
  ),
  fc.array(fc.jsonValue(), { maxLength: 3 }).map((value) => [value]),
  fc.dictionary(fc.string({ unit: 'binary' }), fc.jsonValue({ maxDepth: 2 })),
)

/** A cursor that decodes to anything. */
const cursor = fc.oneof(
  fc.string({ unit: 'binary' }),
  fc.string({ unit: 'binary' }).map((text) => Buffer.from(text).toString('base64url')),
  fc
    .oneof(
      fc.string({ unit: 'binary' }),
      fc.bigInt().map(String),
      fc.constantFrom('99999999999999999999', '1e9', 'NaN', '[1,2]', '{"a":1}', NUL, "1'; select 1 --"),
    )
    .map((text) => Buffer.from(`1:${text}`).toString('base64url')),
)

const texts = fc.oneof(
  fc.string({ unit: 'binary', maxLength: 40 }),
  fc.constantFrom(
    NUL,
    '\ud800',
    '%00',
    '%ff',
    '%',
    '..',
    '__proto__',
    'constructor',
    '9'.repeat(400),
    '1e99',
  ),
)

interface Malformed {
  readonly method: string
  readonly path: string
  readonly body?: unknown
  readonly headers?: Readonly<Record<string, string>>
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** Fields whose value may be anything cannot be malformed, except by what cannot be stored. */
function typedFields(route: Route, sample: Record<string, unknown>): string[] {
  const { properties = {} } = jsonSchemaOf(route.body ?? fail()) as {
    readonly properties?: Readonly<Record<string, Readonly<Record<string, unknown>>>>
  }
  return Object.keys(sample).filter((name) => Object.keys(properties[name] ?? {}).length > 0)
}

function fail(): never {
  throw new Error('the route has a body')
}

/** One thing is wrong with a body that is right otherwise. */
function malformedBody(route: Route): fc.Arbitrary<unknown> {
  const schema = jsonSchemaOf(route.body ?? fail())
  const sample = sampleOf(schema)
  const whole = fc.oneof(
    fc.constantFrom<unknown>(
      '',
      '{',
      '[',
      'null',
      '"text"',
      '1',
      '[]',
      '{"a":1}{',
      '\ufeff{',
      `{"a":"${NUL}"}`,
    ),
    fc.constantFrom(
      '['.repeat(100_000),
      '{"a":'.repeat(100_000),
      `${'['.repeat(20_000)}${']'.repeat(20_000)}`,
    ),
    fc.string({ unit: 'binary' }).map((text) => `{${text}`),
    fc.array(fc.jsonValue(), { minLength: 1 }).map((value) => JSON.stringify(value)),
  )
  if (!isRecord(sample)) return whole
  const names = typedFields(route, sample)
  const added = fc
    .tuple(
      fc.constantFrom('__proto__', 'constructor', 'nonsense', 'toString', NUL, '\ud800', 'a.b', ''),
      fc.jsonValue(),
    )
    .map(
      ([name, value]) =>
        `${JSON.stringify(sample).slice(0, -1)}${Object.keys(sample).length > 0 ? ',' : ''}${JSON.stringify(name)}:${JSON.stringify(value)}}`,
    )
  const deep = `{"a":`.repeat(3_000) + '1' + '}'.repeat(3_000)
  const inAny = Object.keys(sample)
    .filter((name) => !names.includes(name))
    .map((name) =>
      fc.constantFrom(
        JSON.stringify({ ...sample, [name]: NUL }),
        JSON.stringify({ ...sample, [name]: '@' }).replace('"@"', deep),
      ),
    )
  if (names.length === 0) return fc.oneof(whole, added, ...inAny)
  // What a schema accepts is refused only where the id in the path is unknown.
  const isMalformed = (value: unknown): boolean =>
    route.path.includes('{id}') || route.body?.safeParse(value).success === false
  const replaced = fc
    .tuple(fc.constantFrom(...names), hostile)
    .map(([name, value]) => ({ ...sample, [name]: value }))
    .filter(isMalformed)
  const missing = fc.constantFrom(...names).map((name) => ({ ...sample, [name]: undefined }))
  return fc.oneof({ weight: 5, arbitrary: replaced }, missing, whole, added, ...inAny)
}

function malformedQuery(route: Route): fc.Arbitrary<string> {
  const { properties = {} } = (route.query === undefined ? {} : jsonSchemaOf(route.query)) as {
    readonly properties?: Readonly<Record<string, unknown>>
  }
  const names = Object.keys(properties).filter((name) => name !== 'cursor')
  const pairs = fc
    .array(fc.tuple(fc.constantFrom(...names, 'nonsense', '__proto__', 'constructor'), texts), {
      minLength: 1,
      maxLength: 4,
    })
    .map((list) => list.map(([name, value]) => `${name}=${encoded(value)}`).join('&'))
  const raw = fc.constantFrom(
    '%',
    '%ff=%fe',
    '=',
    '&&&',
    'limit=%00',
    'limit[]=1',
    'limit=1&limit=2',
    'a=%u0000',
  )
  return 'cursor' in properties
    ? fc.oneof(
        pairs,
        raw,
        cursor.map((text) => `cursor=${encoded(text)}`),
      )
    : fc.oneof(pairs, raw)
}

/** A lone surrogate cannot be encoded. */
function encoded(text: string): string {
  return encodeURIComponent(text.toWellFormed())
}

/** Nothing has an id that would let a request succeed. */
function malformedPath(route: Route): fc.Arbitrary<string> {
  if (route.params === undefined) return fc.constant(route.path)
  const value = texts.map(encoded).filter((text) => text !== '' && !/^(1|2|\.\.?|%2e(%2e)?)$/i.test(text))
  return fc.oneof(
    fc.constant(samplePath(route)),
    value.map((text) => route.path.replaceAll(/\{\w+\}/g, () => text)),
  )
}

const headers = fc.oneof(
  { weight: 5, arbitrary: fc.constant({}) },
  fc.constantFrom<Record<string, string>>(
    { 'content-type': 'text/plain' },
    { 'content-type': 'application/json; charset=utf-16' },
    { 'content-type': '' },
    { 'idempotency-key': '' },
    { 'idempotency-key': 'x'.repeat(300) },
    { 'idempotency-key': 'zwölf' },
    { 'last-event-id': 'x'.repeat(5_000) },
    { authorization: 'Bearer' },
    { authorization: 'Basic YTpi' },
    {
      authorization:
        'Bearer lhk_00000000000000000000000000000000_0000000000000000000000000000000000000000000',
    },
    { authorization: '', cookie: 'leasehold_session=x' },
    { cookie: `leasehold_session=${'-'.repeat(36)}.9999999999.${'A'.repeat(43)}` },
    { origin: 'null' },
    { origin: 'https://example.com' },
    { accept: '*/*;q=x' },
  ),
)

const writing = ROUTES.filter(({ method, body }) => method !== 'GET' && body !== undefined)
/** All have an id in their path. The end of a session, which anybody may ask for, is no change. */
const withoutBody = ROUTES.filter(
  ({ method, body, isOpen }) => method !== 'GET' && body === undefined && !isOpen,
)
const reading = ROUTES.filter(({ method, isStream }) => method === 'GET' && !isStream)

const requests: fc.Arbitrary<Malformed> = fc.oneof(
  {
    weight: 5,
    arbitrary: fc.constantFrom(...writing).chain((route) =>
      fc.record({
        method: fc.constant(route.method as string),
        path: malformedPath(route),
        body: malformedBody(route),
        headers,
      }),
    ),
  },
  {
    weight: 4,
    arbitrary: fc
      .constantFrom(...reading)
      .chain((route) =>
        fc
          .record({ path: malformedPath(route), query: malformedQuery(route), headers })
          .map(({ path, query, headers }) => ({ method: 'GET', path: `${path}?${query}`, headers })),
      ),
  },
  {
    weight: 1,
    arbitrary: fc
      .constantFrom(...withoutBody)
      .chain((route) =>
        fc
          .record({ path: malformedPath(route), query: malformedQuery(route), headers })
          .map(({ path, query, headers }) => ({ method: route.method, path: `${path}?${query}`, headers })),
      ),
  },
  fc
    .record({
      method: fc.constantFrom('GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'PROPFIND'),
      path: texts,
      headers,
    })
    .map((request) => ({ ...request, path: `/${encoded(request.path)}` })),
)

it('every route but the live stream and the end of a session is among those that get malformed requests', () => {
  const tried = new Set([...writing, ...withoutBody, ...reading])
  const names = ROUTES.filter((route) => !tried.has(route)).map(({ method, path }) => `${method} ${path}`)
  expect(names).toEqual(['DELETE /session', 'GET /live'])
})

it(`${RUNS} malformed requests are refused without an error of the server, and change nothing`, async () => {
  const before = await checksums(db)
  expect((await send('GET', '/outbox/events')).body.items).toMatchObject([
    { status: 'PENDING' },
    { status: 'DEAD' },
  ])
  const statuses: Record<string, number> = {}
  await fc.assert(
    fc.asyncProperty(requests, async ({ method, path, body, headers = {} }) => {
      const { status, body: answer } = await send(method, path, { body, headers })
      statuses[status] = (statuses[status] ?? 0) + 1
      expect(status, JSON.stringify(answer)).toBeLessThan(500)
      // A question may be well-formed by chance.
      expect(method === 'GET' || status >= 400, JSON.stringify(answer)).toBe(true)
    }),
    { ...REPEAT, numRuns: RUNS },
  )
  expect(await checksums(db)).toEqual(before)
  expect(Object.prototype).not.toHaveProperty('polluted')
  // They got far enough to be examined.
  expect(statuses[422]).toBeGreaterThan(RUNS / 4)
  expect(await send('GET', '/overview')).toMatchObject({ status: 200 })
})

it('requests that no client library would send are refused without an error of the server', async () => {
  const before = await checksums(db)
  const server = createServer(toNodeHandler(api()))
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  afterAll(() => server.close())
  const address = server.address()
  const port = typeof address === 'object' && address !== null ? address.port : 0
  const key = `authorization: Bearer ${keys.admin}`
  const json = 'content-type: application/json'
  const event = '{"type":"a","payload":1}'
  const raw: readonly (readonly string[])[] = [
    [`GET ${BASE}/outbox/events?cursor=%00%ff HTTP/1.1`, key],
    [`GET ${BASE}/workers/%ff%fe HTTP/1.1`, key],
    [`GET ${BASE}/workers/%00 HTTP/1.1`, key],
    [`GET ${BASE}/workers/%2e%2e%2f HTTP/1.1`, key],
    [`GET ${BASE}//outbox//events HTTP/1.1`, key],
    [`GET ${BASE}/outbox/events/../../../etc/passwd HTTP/1.1`, key],
    [`GET http://other.example${BASE}/overview HTTP/1.1`],
    [`GET //other.example${BASE}/overview HTTP/1.1`, key],
    ['GET * HTTP/1.1', key],
    ['OPTIONS * HTTP/1.1'],
    [`GET ${BASE}/overview HTTP/1.1`, key, key.replace('lhk', 'xyz')],
    [`GET ${BASE}/overview HTTP/1.1`, 'authorization: Bearer \xff\xfe'],
    [
      `POST ${BASE}/outbox/events HTTP/1.1`,
      key,
      json,
      'idempotency-key: a b',
      `content-length: ${event.length}`,
      '',
      event,
    ],
    [
      `POST ${BASE}/outbox/events HTTP/1.1`,
      key,
      json,
      'idempotency-key: a',
      'idempotency-key: b',
      `content-length: ${event.length}`,
      '',
      event,
    ],
    [
      `POST ${BASE}/outbox/events HTTP/1.1`,
      key,
      json,
      'content-type: text/plain',
      'transfer-encoding: chunked',
      '',
      '2',
      '{{',
      '0',
      '',
    ],
    [`POST ${BASE}/outbox/events HTTP/1.1`, key, json, 'content-length: 2', 'content-length: 3', '', '{}'],
    [
      `POST ${BASE}/outbox/events HTTP/1.1`,
      key,
      json,
      'content-encoding: gzip',
      'content-length: 2',
      '',
      '{}',
    ],
    [`POST ${BASE}/outbox/events HTTP/1.1`, key, json, 'content-length: 4', '', '"\xff\xfe"'],
    [`POST ${BASE}/outbox/events HTTP/1.1`, key, json, 'expect: 100-continue', 'content-length: 2', '', '{}'],
    [`DELETE ${BASE}/keys/x HTTP/1.1`, key, json, 'content-length: 1', '', '{'],
    [`BREW ${BASE}/overview HTTP/1.1`, key],
    [`TRACE ${BASE}/overview HTTP/1.1`, key],
  ]
  for (const lines of raw) {
    const answer = await exchange(port, lines)
    const [, status = 'none'] = /(?:^|\r\n)HTTP\/1\.1 ([2-9]\d\d) /.exec(answer) ?? []
    expect(answer === '' || Number(status) < 500, `${lines[0]}: ${answer}`).toBe(true)
    const isRefused = lines[0]?.startsWith('POST') !== true || Number(status) >= 400
    expect(isRefused, `${lines.join('\n')}\n${answer}`).toBe(true)
  }
  expect(await checksums(db)).toEqual(before)
  server.closeAllConnections()
})

/** What the server answers to these lines, as latin1, until it closes the connection. */
async function exchange(port: number, [first = '', ...rest]: readonly string[]): Promise<string> {
  const socket = connect(port, '127.0.0.1')
  let answer = ''
  socket.on('data', (chunk) => (answer += chunk.toString('latin1')))
  socket.on('error', () => undefined)
  const body = rest.includes('') ? [] : ['']
  socket.write(
    Buffer.from(
      [first, `host: 127.0.0.1:${port}`, 'connection: close', ...rest, ...body, ''].join('\r\n'),
      'latin1',
    ),
  )
  await once(socket, 'close')
  return answer
}
