import { afterAll, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { auditEntries } from '../../../test/support/outbox-rows.ts'
import { openDatabase } from '../../postgres/database.ts'
import type { By, EndpointChanges, NewEndpoint } from './endpoint.ts'
import { endpoints, type EndpointNetwork } from './endpoints.ts'
import { isWanted } from '../subscription.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
afterAll(async () => {
  await db.close()
})

const secretKey = Buffer.alloc(32, 7).toString('hex')
const BY = { principal: 'ada' }
const HOOKS = 'https://receiver.example/hooks'

function managed(network: EndpointNetwork = {}) {
  return endpoints(db, { secretKey, network })
}

/** As JavaScript would pass it: much of this does not compile. */
async function refusal(given: unknown, by: unknown = BY, network: EndpointNetwork = {}): Promise<string> {
  const error: unknown = await managed(network)
    .create(given as NewEndpoint, by as By)
    .then(
      () => 'was created',
      (reason: unknown) => reason,
    )
  expect(error).toMatchObject({ code: 'REQUEST_INVALID' })
  expect((await managed().list()).endpoints).toEqual([])
  expect(await auditEntries(db)).toEqual([])
  return error instanceof Error ? error.message : String(error)
}

describe('new endpoints', () => {
  it.each([
    [
      'an endpoint that is not an object',
      'https://a.example',
      "the endpoint is 'https://a.example', but must be an object",
    ],
    ['an endpoint without a url', {}, 'url is missing'],
    ['a url that is not a text', { url: 7 }, 'url is 7, but must be a URL as a text'],
    ['a url with http', { url: 'http://a.example' }, 'url: The webhook URL begins with http:'],
    ['a scheme that is not http', { url: 'ftp://a.example' }, 'begins with ftp:'],
    ['a url with credentials', { url: 'https://me:s3cret@a.example' }, 'has credentials in it'],
    ['a loopback address', { url: 'https://127.0.0.1/x' }, 'leads to 127.0.0.1'],
    ['a loopback address as a number', { url: 'https://2130706433/x' }, 'leads to 127.0.0.1'],
    ['the address of cloud metadata', { url: 'https://169.254.169.254/x' }, 'leads to 169.254.169.254'],
    ['a loopback address in IPv6', { url: 'https://[::ffff:7f00:1]/' }, 'leads to ::ffff:7f00:1'],
    [
      'a url that is too long once encoded',
      { url: `https://a.example/${'ä'.repeat(1_000)}` },
      'url has 6018 bytes once encoded',
    ],
    [
      'eventTypes that are not a list',
      { url: HOOKS, eventTypes: 'a' },
      "eventTypes is 'a', but must be a list",
    ],
    ['an empty event type', { url: HOOKS, eventTypes: ['a', ''] }, "eventTypes[1] is ''"],
    [
      'a star inside an event type',
      { url: HOOKS, eventTypes: ['order.*.paid'] },
      "eventTypes[0] is 'order.*.paid', but *",
    ],
    [
      'a star without a dot before it',
      { url: HOOKS, eventTypes: ['order*'] },
      "eventTypes[0] is 'order*', but *",
    ],
    ['two stars', { url: HOOKS, eventTypes: ['order.**'] }, "eventTypes[0] is 'order.**'"],
    [
      'too many event types',
      { url: HOOKS, eventTypes: Array.from({ length: 101 }, String) },
      'has 101 entries',
    ],
    ['a line break in a header', { url: HOOKS, headers: { 'x-a': 'a\r\nhost: b' } }, 'the header "x-a"'],
    [
      'a header that Leasehold sets',
      { url: HOOKS, headers: { 'Webhook-Id': '1' } },
      '"Webhook-Id" is set by Leasehold',
    ],
    ['headers that are a list', { url: HOOKS, headers: ['t0ken'] }, 'headers is a list, but must be'],
    ['headers that are a text', { url: HOOKS, headers: 'Bearer t0ken' }, 'headers is a string, but must be'],
    [
      'headers of fetch',
      { url: HOOKS, headers: new Headers({ authorization: 't0ken' }) },
      'headers is an object of another kind, but must be a plain object of texts',
    ],
    [
      'headers that are a Map',
      { url: HOOKS, headers: new Map([['authorization', 't0ken']]) },
      'headers is an object of another kind, but must be a plain object of texts',
    ],
    [
      'a header without a value',
      { url: HOOKS, headers: { authorization: null } },
      '"authorization" has characters',
    ],
    [
      'a header value that is hidden',
      { url: HOOKS, headers: { authorization: '***' } },
      'authorization is ***',
    ],
    ['a rate of 0', { url: HOOKS, ratePerSecond: 0 }, 'ratePerSecond is 0, but must be above 0'],
    ['a rate of NaN', { url: HOOKS, ratePerSecond: Number.NaN }, 'ratePerSecond is NaN'],
    ['a concurrency of 0', { url: HOOKS, concurrency: 0 }, 'concurrency is 0'],
    ['a concurrency of 1.5', { url: HOOKS, concurrency: 1.5 }, 'concurrency is 1.5'],
    ['a timeout that is a text', { url: HOOKS, timeoutMs: '15' }, "timeoutMs is '15'"],
    ['a timeout that is too long', { url: HOOKS, timeoutMs: 300_001 }, 'timeoutMs is 300001'],
    ['ordered that is not a boolean', { url: HOOKS, ordered: 'yes' }, "ordered is 'yes'"],
    ['an unknown signing', { url: HOOKS, signing: 'v2' }, "signing is 'v2', but must be 'v1' or 'v1a'"],
    ['a tenant that is not a text', { url: HOOKS, tenant: 5 }, 'tenant is 5'],
    [
      'a description too long',
      { url: HOOKS, description: 'x'.repeat(1_001) },
      'description has 1001 characters',
    ],
    [
      'an unknown field',
      { url: HOOKS, event_types: [] },
      'event_types cannot be given here: the fields are url,',
    ],
    [
      'a secret without its prefix',
      { url: HOOKS, secret: 'hunter2' },
      'secret must begin with whsec_, because signing is v1',
    ],
    [
      'a short secret',
      { url: HOOKS, secret: `whsec_${Buffer.alloc(8).toString('base64')}` },
      'secret has 8 bytes',
    ],
    [
      'a shared secret for v1a',
      { url: HOOKS, signing: 'v1a', secret: `whsec_${Buffer.alloc(32).toString('base64')}` },
      'secret must begin with whsk_, because signing is v1a',
    ],
  ])('create refuses %s, names the field and writes nothing', async (_, given, message) => {
    expect(await refusal(given)).toContain(message)
  })

  it('create reports all problems at once', async () => {
    const given = {
      url: 'http://a.example',
      concurrency: 0,
      headers: { host: 'b' },
      ordered: 1,
      colour: 'red',
    }
    const message = await refusal(given, { principal: ' ', reason: '' })
    for (const part of [
      'url:',
      'concurrency is 0',
      '"host"',
      'ordered is 1',
      'colour cannot',
      "principal is ' '",
      "reason is ''",
    ]) {
      expect(message).toContain(part)
    }
    expect(message).toMatch(/^Nothing was changed: /)
  })

  it('errors repeat neither a secret nor the path of a url', async () => {
    const message = await refusal({
      url: 'http://a.example/t0ken',
      secret: 'whsec_hunter2',
      headers: { 'x-a': 'h3ader\n' },
    })
    expect(message).not.toMatch(/t0ken|hunter2|h3ader/)
  })

  it('create refuses a call without a principal', async () => {
    expect(await refusal({ url: HOOKS }, null)).toContain(
      'principal is undefined, but must be who changes it',
    )
  })
})

describe('changes', () => {
  it('update refuses empty changes and fields that cannot be changed, and changes nothing', async () => {
    const { endpoint } = await managed().create({ url: HOOKS }, BY)
    const refused = async (changes: unknown): Promise<string> =>
      managed()
        .update(endpoint.id, changes as EndpointChanges, BY)
        .then(
          () => 'was changed',
          (error: unknown) => (error instanceof Error ? error.message : String(error)),
        )
    expect(await refused({})).toContain('there is nothing to change: give one of url,')
    expect(await refused({ url: undefined })).toContain('there is nothing to change')
    expect(await refused({ tenant: 'b', signing: 'v1a', secret: 'x', concurrency: 0 })).toMatch(
      /tenant cannot be given here.*signing cannot.*secret cannot.*concurrency is 0/,
    )
    expect(await refused({ url: 'https://10.0.0.1/' })).toContain('leads to 10.0.0.1')
    await expect(managed().update('one', { concurrency: 1 }, BY)).rejects.toThrow("id is 'one'")
    expect((await managed().list()).endpoints).toEqual([endpoint])
    await managed().delete(endpoint.id, BY)
  })
})

describe('network policy', () => {
  it.each([
    ['http://127.0.0.1:8080/hooks', { allow: ['127.0.0.0/8'] }],
    ['http://localhost:8080/hooks', { allow: ['127.0.0.0/8'] }],
    ['http://receiver.example/hooks', { allowHttp: true }],
  ])('the url %s is accepted with the network policy %j', async (given, network) => {
    const { endpoint } = await managed(network).create({ url: given }, BY)
    expect(endpoint.url).toBe(given)
    await managed().delete(endpoint.id, BY)
  })
})

describe('event types', () => {
  const TYPES = ['order.paid', 'order', 'order.', 'orders.paid', 'order.paid.late', '*', 'a*', '']
  const WANTED = [[], ['*'], ['order.*'], ['order.paid'], ['user.*', 'order'], ['order.paid.*']]
  it('isWanted agrees with webhook_wanted() in the database', async () => {
    for (const wanted of WANTED) {
      const { rows } = await db.query<{ type: string; wanted: boolean }>({
        text: `select type, leasehold.webhook_wanted($1::text[], type) as wanted from unnest($2::text[]) as type`,
        values: [wanted, TYPES],
      })
      expect(rows).toEqual(TYPES.map((type) => ({ type, wanted: isWanted(wanted, type) })))
    }
  })
})
