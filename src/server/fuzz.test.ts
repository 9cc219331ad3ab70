/** Malformed requests to the dashboard and to the server that serves it: each gets one of the few answers that there are. */
import { once } from 'node:events'
import { connect } from 'node:net'
import fc from 'fast-check'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { checksums } from '../../test/support/checksums.ts'
import { useDatabase } from '../../test/support/database.ts'
import { repeat } from '../../test/support/lease-model/property.ts'
import { openDatabase } from '../postgres/index.ts'
import { createDashboard } from './dashboard.ts'
import { type HttpServer, startServer } from './server.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const errors: unknown[] = []
const onError = (error: unknown): void => void errors.push(error)
const dashboard = createDashboard({ db, basePath: '/ops', onError, portalOrigins: ['https://app.example'] })
let server: HttpServer

beforeAll(async () => {
  server = await startServer({
    version: '0',
    health: { examine: async () => Promise.resolve([]) },
    metrics: async () => Promise.resolve('up 1\n'),
    dashboard,
    host: '127.0.0.1',
    port: 0,
    whenTaken: 'refuse',
    onError,
  })
})
afterAll(async () => {
  await server.stop()
  await dashboard.stop()
  await db.close()
})

/** Always the same requests, unless LEASEHOLD_SEED and LEASEHOLD_RUNS ask for others. */
const { seed, path, runs: RUNS } = repeat({ LEASEHOLD_SEED: '20', ...process.env }, 1_000)
const REPEAT = { seed, ...(path === undefined ? {} : { path }) }

const MARK = 'a-mark-that-is-nowhere-else'

const part = fc.oneof(
  fc.string({ unit: 'binary', maxLength: 20 }).map((text) => encodeURIComponent(text.toWellFormed())),
  fc.constantFrom(
    '',
    '.',
    '..',
    '%2e%2e',
    '%2E%2e%2f',
    '..%2f..%2f..%2fetc%2fpasswd',
    '..%5c..%5cpackage.json',
    '%00',
    '%ff%fe',
    '%',
    '%u0000',
    '%0d%0aset-cookie:x=1',
    '<script>',
    '"><svg onload=1>',
    'assets',
    'assets.json',
    'app.js',
    'api',
    'v1',
    'portal',
    'portal%2f..',
    '__proto__',
    'constructor',
    ';x=1',
    '\\',
    'x'.repeat(4_000),
    MARK,
  ),
)
const paths = fc
  .tuple(
    fc.constantFrom(
      '',
      '/ops',
      '/ops/',
      '/ops/assets',
      '/ops/api/v1',
      '/ops/api/v1/overview',
      '/ops/portal',
      '//ops',
      '/OPS',
    ),
    fc.array(part, { maxLength: 5 }),
  )
  .map(([start, parts]) => [start, ...parts].join('/'))
const queries = fc.oneof(
  fc.constant(''),
  part.map((text) => `?${text}=${MARK}`),
  fc.constant(`#${MARK}`),
)
const methods = fc.constantFrom(
  'GET',
  'GET',
  'GET',
  'HEAD',
  'POST',
  'PUT',
  'PATCH',
  'DELETE',
  'OPTIONS',
  'PROPFIND',
)
const headers = fc.constantFrom<Record<string, string>>(
  {},
  { 'accept-encoding': 'br;q=0, gzip;q=x, *' },
  { 'accept-encoding': 'br'.repeat(5_000) },
  { range: 'bytes=0-1,5-,-9999999999' },
  { 'if-none-match': '*' },
  { host: `${MARK}.example` },
  { 'x-forwarded-host': `${MARK}.example`, 'x-forwarded-proto': 'javascript' },
  { origin: 'null', cookie: `leasehold_session=lhs_${'A'.repeat(43)}` },
  { cookie: `leasehold_session=${MARK}; `.repeat(200) },
  { authorization: `Bearer ${MARK}` },
  { authorization: `Bearer lhs_${'A'.repeat(43)}` },
  { 'content-type': 'text/html', referer: `https://${MARK}.example/` },
)

interface Answer {
  readonly status: number
  readonly headers: Headers
  readonly body: string
}

/** The page is the same for every path; only the API, which answers with JSON, repeats what was asked. */
function mistakes({ status, headers: sent, body }: Answer): readonly string[] {
  const type = sent.get('content-type') ?? ''
  const isPage = type.startsWith('text/html')
  const isJson = /^application\/(?:problem\+)?json/.test(type)
  const found: Readonly<Record<string, boolean>> = {
    'an error of the server': status >= 500,
    'a redirect': status >= 300 && status < 400 && status !== 304,
    'a type that a browser may guess': sent.get('x-content-type-options') !== 'nosniff',
    'a page without its policy':
      isPage && sent.get('content-security-policy')?.includes("script-src 'self'") !== true,
    'a page that another site may frame':
      isPage &&
      !/frame-ancestors ('none'|https:\/\/app\.example);/.test(sent.get('content-security-policy') ?? ''),
    'what was asked': !isJson && body.includes(MARK),
    'a file of this machine':
      /root:|"dependencies"|createDashboard/.test(body) && !type.includes('javascript'),
    'a cookie': sent.has('set-cookie'),
    'leave to read it from another site': sent.has('access-control-allow-origin'),
  }
  return Object.keys(found).filter((name) => found[name])
}

it(`${RUNS} malformed requests to the dashboard get its page, a file of its own or a refusal, and nothing of what they sent`, async () => {
  const before = await checksums(db)
  const statuses: Record<string, number> = {}
  await fc.assert(
    fc.asyncProperty(methods, paths, queries, headers, async (method, asked, query, given) => {
      const request = new Request(`http://localhost${asked.startsWith('/') ? '' : '/'}${asked}${query}`, {
        method,
        headers: given,
      })
      const response = await dashboard.fetch(request)
      const { status } = response
      statuses[status] = (statuses[status] ?? 0) + 1
      const answer = { status, headers: response.headers, body: await response.text() }
      expect(
        mistakes(answer),
        `${method} ${asked}${query} ${JSON.stringify(given)}\n${status} ${answer.body}`,
      ).toEqual([])
    }),
    { ...REPEAT, numRuns: RUNS },
  )
  for (const status of [200, 401, 404, 405])
    expect(statuses[status], JSON.stringify(statuses)).toBeGreaterThan(0)
  expect(errors).toEqual([])
  expect(await checksums(db)).toEqual(before)
})

it('requests that no browser would send are refused by the server, which answers the next one', async () => {
  const { port } = server
  const host = `host: 127.0.0.1:${port}`
  const raw: readonly (readonly string[])[] = [
    ['GET /ops/../../../../etc/passwd HTTP/1.1', host],
    ['GET /ops/assets/..%2f..%2f..%2fpackage.json HTTP/1.1', host],
    ['GET /ops/%00 HTTP/1.1', host],
    ['GET /ops/\xff\xfe HTTP/1.1', host],
    [`GET http://${MARK}.example/ops HTTP/1.1`, host],
    [`GET //${MARK}.example/ops HTTP/1.1`, host],
    ['GET /ops HTTP/1.1', `host: ${MARK}.example`],
    ['GET /ops HTTP/1.1'],
    ['GET /ops HTTP/1.1', host, host],
    ['GET /ops HTTP/1.1', host, `x-large: ${'x'.repeat(100_000)}`],
    ['GET /ops HTTP/1.1', host, ...Array.from({ length: 3_000 }, (_, n) => `x-${n}: 1`)],
    [`GET /ops/${'x'.repeat(60_000)} HTTP/1.1`, host],
    ['GET /ops HTTP/1.1', host, 'x-bad: a\rb'],
    ['GET /ops HTTP/1.1', host, ' folded: x'],
    ['GET /ops HTTP/9.9', host],
    ['BREW /ops HTTP/1.1', host],
    ['TRACE /ops HTTP/1.1', host],
    ['CONNECT 127.0.0.1:22 HTTP/1.1', host],
    ['GET /ops HTTP/1.1', host, 'upgrade: websocket', 'connection: upgrade'],
    [
      'POST /ops HTTP/1.1',
      host,
      'content-length: 5',
      'transfer-encoding: chunked',
      '',
      '0',
      '',
      'GET /x HTTP/1.1',
    ],
    ['POST /ops HTTP/1.1', host, 'content-length: -1'],
    ['\x16\x03\x01\x02\x00\x01\x00'],
    [MARK],
  ]
  for (const lines of raw) {
    const answer = await exchange(port, lines)
    const statuses = [...answer.matchAll(/(?:^|\r\n)HTTP\/1\.1 (\d{3}) /g)].map(([, status]) =>
      Number(status),
    )
    expect(
      statuses.every((status) => status < 500 && (status < 300 || status >= 400)),
      `${lines[0]?.slice(0, 80)}: ${answer}`,
    ).toBe(true)
    expect(answer, lines[0]?.slice(0, 80)).not.toMatch(/root:|"dependencies"|access-control-allow-origin/i)
  }
  expect(errors).toEqual([])
  expect((await fetch(`${server.url}/livez`)).status).toBe(200)
})

/** What the server answers to these lines, as latin1, until it closes the connection. */
async function exchange(port: number, lines: readonly string[]): Promise<string> {
  const socket = connect(port, '127.0.0.1')
  let answer = ''
  socket.on('data', (chunk) => (answer += chunk.toString('latin1')))
  socket.on('error', () => undefined)
  const [first = '', ...rest] = lines
  const text = [first, 'connection: close', ...rest, ...(rest.includes('') ? [] : ['']), ''].join('\r\n')
  socket.end(Buffer.from(text, 'latin1'))
  await once(socket, 'close')
  return answer
}
