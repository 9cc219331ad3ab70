import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { type Called, type CallOptions, useCommandLine } from '../../../test/support/command-line.ts'
import { removeDirectory, temporaryDirectory } from '../../../test/support/directory.ts'
import { auditEntries } from '../../../test/support/outbox-rows.ts'
import { forgetWebhooks, writtenDeliveries } from '../../../test/support/webhook-endpoints.ts'

const { db, directory, call } = useCommandLine('webhooks')
const KEY = Buffer.alloc(32, 7).toString('base64')
const HOOKS = 'https://receiver.example/hooks'
let withoutKey = ''
beforeAll(async () => {
  withoutKey = await temporaryDirectory()
  await writeFile(join(directory(), 'leasehold.config.mjs'), `export default { secretKey: '${KEY}' }`)
})
afterAll(async () => removeDirectory(withoutKey))
beforeEach(async () => forgetWebhooks(db))

async function webhooks(args: readonly string[], options?: Partial<CallOptions>): Promise<Called> {
  const called = await call(args, options)
  expect(called.stdout + called.stderr, 'the key is never printed').not.toContain(KEY)
  return called
}

async function endpoints(args: readonly string[], options: Partial<CallOptions> = {}): Promise<Called> {
  return webhooks(['endpoints', ...args], options)
}

/** The document that `--json` prints: exactly one, and nothing else. */
async function json(args: readonly string[], options: Partial<CallOptions> = {}): Promise<Printed> {
  // Each test checks the fields that it needs.
  return JSON.parse((await endpoints([...args, '--json'], options)).stdout) as Printed
}

interface Printed {
  readonly id: string
  readonly secret: string
  readonly publicKey: string | null
  readonly endpoint: { readonly id: string }
  readonly endpoints: readonly { readonly id: string }[]
  readonly next: string | null
}

async function create(...more: readonly string[]): Promise<string> {
  return (await json(['create', HOOKS, ...more])).endpoint.id
}

describe('create', () => {
  it('create makes an endpoint and prints its secret once, and the audit says who', async () => {
    const { code, stdout } = await endpoints([
      'create',
      HOOKS,
      '--reason',
      'a customer',
      '--principal',
      'ada',
    ])
    expect(code).toBe(0)
    const [, id, secret = ''] =
      /^Created: endpoint (\S+) for \S+\.\n\nSecret {2}(whsec_\S+)\n/.exec(stdout) ?? []
    expect(stdout).toContain('shown only once')
    expect(await auditEntries(db)).toMatchObject([
      { principal: 'ada', action: 'webhooks.endpoint.create', target: id, details: { reason: 'a customer' } },
    ])
    const later = await Promise.all([endpoints(['show', id ?? '']), endpoints(['list'])])
    for (const called of later) expect(called.stdout).not.toContain(secret.slice(6))
  })

  it('create accepts every field of an endpoint', async () => {
    const given = ['--tenant', 'acme', '--description', 'their shop', '--types', 'order.*, user.gone']
    const limits = ['--rate', '2.5', '--concurrency', '3', '--timeout-ms', '2000', '--ordered']
    const headers = ['--header', 'Authorization=Bearer t0ken=', '--header', 'x-a=1']
    const printed = await json(['create', HOOKS, ...given, ...limits, ...headers])
    expect(printed.endpoint).toMatchObject({
      tenant: 'acme',
      description: 'their shop',
      eventTypes: ['order.*', 'user.gone'],
      ratePerSecond: 2.5,
      concurrency: 3,
      timeoutMs: 2_000,
      ordered: true,
      headers: { authorization: '***', 'x-a': '***' },
    })
    const { rows } = await db.query({ text: 'select headers from leasehold.webhook_endpoints' })
    expect(rows).toEqual([
      {
        headers: { authorization: expect.stringMatching(/^enc1\./), 'x-a': expect.stringMatching(/^enc1\./) },
      },
    ])
    expect((await auditEntries(db))[0]?.principal).toBe('the account')
  })

  it('with v1a shows the public key too, and show has it', async () => {
    const { publicKey, endpoint } = await json(['create', HOOKS, '--signing', 'v1a'])
    expect(publicKey).toMatch(/^whpk_/)
    expect((await endpoints(['show', endpoint.id])).stdout).toContain(`Public key    ${publicKey}`)
    const text = await endpoints(['create', HOOKS, '--signing', 'v1a'])
    expect(text.stdout).toMatch(
      /Public key {2}whpk_\S+\nSecret {6}whsk_\S+\n\nGive the public key to the receiver/,
    )
  })

  it('create reads a secret from stdin', async () => {
    const secret = `whsec_${Buffer.alloc(32, 3).toString('base64')}`
    expect(await json(['create', HOOKS, '--secret-stdin'], { input: `${secret}\n` })).toMatchObject({
      secret,
    })
  })

  it('create accepts an address of the development network only where that is allowed', async () => {
    const local = 'http://127.0.0.1:3000/hooks'
    const { code, stderr } = await endpoints(['create', local])
    expect(code).toBe(2)
    expect(stderr).toContain('leads to 127.0.0.1')
    expect((await endpoints(['create', local, '--webhook-allow', '127.0.0.0/8'])).code).toBe(0)
    const wrong = await endpoints(['create', local, '--webhook-allow', '127.0.0.1/8'])
    expect([wrong.code, wrong.stderr]).toEqual([
      1,
      expect.stringContaining('webhookAllow (--webhook-allow) is'),
    ])
  })

  it('create refuses networks and ports that --webhook-refuse and --webhook-ports exclude', async () => {
    const refuse = ['--webhook-refuse', '8.8.8.0/24, 9.9.9.9']
    for (const target of ['https://8.8.8.8/', 'https://[64:ff9b::808:808]/', 'https://9.9.9.9/']) {
      const { code, stderr } = await endpoints(['create', target, ...refuse])
      expect([code, stderr]).toEqual([2, expect.stringContaining('in a refused range')])
    }
    expect((await endpoints(['create', 'https://8.8.9.8/', ...refuse])).code).toBe(0)
    const ports = ['--webhook-ports', '443, 8443']
    const other = await endpoints(['create', HOOKS.replace('.example', '.example:9000'), ...ports])
    expect([other.code, other.stderr]).toEqual([2, expect.stringContaining('has port 9000')])
    expect((await endpoints(['create', HOOKS, ...ports])).code).toBe(0)
    for (const given of ['0', 'https', '443,', '70000', '']) {
      const wrong = await endpoints(['create', HOOKS, '--webhook-ports', given])
      expect([wrong.code, wrong.stderr]).toEqual([
        1,
        expect.stringContaining('webhookPorts (--webhook-ports) is'),
      ])
    }
  })

  it('without a key nothing is stored, and it is said how to make one', async () => {
    const { code, stderr } = await endpoints(['create', HOOKS], { workingDirectory: withoutKey })
    expect(code).toBe(1)
    expect(stderr).toMatch(/SECRET_KEY_INVALID.*LEASEHOLD_SECRET_KEY.*openssl rand -base64 32/s)
    expect(await json(['list'])).toEqual({ endpoints: [], next: null })
  })

  it.each([
    [['create', HOOKS, '--rate', 'fast'], '--rate is "fast": give a number.'],
    [['create', HOOKS, '--types', 'order*'], "eventTypes[0] is 'order*'"],
    [['create', HOOKS, '--signing', 'v2'], '--signing is "v2"'],
    [['create', HOOKS, '--header', 'nothing'], '--header number 1 is not understood: give it as name=value.'],
    [['create', 'ftp://a.example', '--concurrency', '0'], 'concurrency is 0'],
    [['rotate', 'x', '--keep-old-for', 'long'], '--keep-old-for is "long": give a duration such as'],
    [['list', '--state', 'on'], '--state is "on": give enabled or disabled.'],
    [['show', 'x'], "id is 'x', but must be the id of an endpoint"],
  ])('the arguments %j are refused', async (args, message) => {
    const { code, stderr } = await endpoints(args)
    expect(code).toBe(2)
    expect(stderr).toContain(message)
    expect(await auditEntries(db)).toEqual([])
  })
})

describe('list and show', () => {
  it('list filters by tenant, state and type, page by page', async () => {
    expect((await endpoints(['list'])).stdout).toContain('There are no endpoints yet')
    const [one, two] = [await create('--types', 'order.*', '--tenant', 'acme'), await create()]
    await endpoints(['disable', two, '--reason', 'asked for'])
    const { stdout } = await endpoints(['list'])
    expect(stdout).toMatch(/^ID +TENANT +TYPES +URL +STATE\n/)
    expect(stdout).toMatch(new RegExp(`${one} +acme +order\\.\\* +${HOOKS} +enabled\n`))
    expect(stdout).toMatch(new RegExp(`${two} +- +all +${HOOKS} +disabled: asked for\n`))
    const ids = async (...filter: string[]): Promise<string[]> =>
      (await json(['list', ...filter])).endpoints.map(({ id }) => id)
    expect(await ids('--tenant', 'acme')).toEqual([one])
    expect(await ids('--state', 'disabled')).toEqual([two])
    expect(await ids('--type', 'user.gone')).toEqual([two])
    expect((await endpoints(['list', '--tenant', 'nobody'])).stdout).toBe('No such endpoints.\n')
    expect((await endpoints(['list', '--limit', '1'])).stdout).toContain(`--after ${one} shows the next ones`)
    expect(await ids('--after', one)).toEqual([two])
  })

  it('show prints an endpoint with the names of its headers and not their values', async () => {
    const id = await create('--header', 'authorization=t0ken', '--rate', '5')
    const { stdout } = await endpoints(['show', id])
    expect(stdout).toMatch(/^Endpoint +\S+\nUrl +https:\/\/receiver\.example\/hooks\nTenant +none\n/)
    expect(stdout).toMatch(/Rate +5 per second\n/)
    expect(stdout).toMatch(/Headers +authorization\n/)
    const document = await json(['show', id])
    expect(document).toMatchObject({ id, headers: { authorization: '***' } })
    expect(stdout + JSON.stringify(document)).not.toMatch(/t0ken|enc1/)
  })

  it('one that does not exist is said to be missing', async () => {
    const { code, stderr } = await endpoints(['show', '0190b3a0-0000-7000-8000-000000000001'])
    expect(code).toBe(1)
    expect(stderr).toContain('ENDPOINT_NOT_FOUND')
  })
})

it('an endpoint beyond the limit of its tenant is refused', async () => {
  const limit = ['--webhook-endpoints-per-tenant', '1']
  const tenant = ['--tenant', 'limited']
  expect((await endpoints(['create', HOOKS, ...tenant, ...limit])).code).toBe(0)
  const { code, stderr } = await endpoints(['create', HOOKS, ...tenant, ...limit])
  expect(code).toBe(2)
  expect(stderr).toContain('tenant "limited" has 1 endpoint, and at most 1 is allowed')
})

describe('changes', () => {
  it('update changes the named fields, and removes those that are to be removed', async () => {
    const id = await create('--types', 'a', '--rate', '1', '--header', 'x-a=1', '--ordered')
    expect((await endpoints(['update', id])).stderr).toContain('there is nothing to change')
    const changed = await json([
      'update',
      id,
      '--url',
      `${HOOKS}/2`,
      '--concurrency',
      '7',
      '--header',
      'x-b=2',
    ])
    expect(changed.endpoint).toMatchObject({
      url: `${HOOKS}/2`,
      concurrency: 7,
      headers: { 'x-b': '***' },
      eventTypes: ['a'],
      ratePerSecond: 1,
      ordered: true,
    })
    const less = await json(['update', id, '--no-types', '--no-rate', '--no-header', '--no-ordered'])
    expect((await endpoints(['show', id])).stdout).toMatch(/Rate +no limit\n/)
    expect(less.endpoint).toMatchObject({
      url: `${HOOKS}/2`,
      headers: {},
      eventTypes: [],
      ratePerSecond: null,
      ordered: false,
    })
    expect((await endpoints(['update', id, '--ordered'])).stdout).toBe(`Changed: endpoint ${id}.\n`)
  })

  it('update says which headers it removed, because the URL leads to another server', async () => {
    const id = await create('--header', 'x-a=1')
    expect((await endpoints(['update', id, '--url', 'https://other.example/'])).stdout).toBe(
      `Changed: endpoint ${id}. Its headers were removed (x-a), because the URL leads to another server; give those of the new one with --header.\n`,
    )
  })

  it('rotate prints the new secret, and until when the old one is used too', async () => {
    const { endpoint, secret } = await json(['create', HOOKS])
    const { stdout } = await endpoints(['rotate', endpoint.id, '--keep-old-for', '2h'])
    expect(stdout).toMatch(
      /has a new secret\. Deliveries are signed with the old secret too until \S+\.\n\nSecret {2}whsec_/,
    )
    expect(stdout).not.toContain(secret)
    expect((await endpoints(['show', endpoint.id])).stdout).toMatch(
      /Old secret +also signs until \S+ \(in (2 h|120 min)\)/,
    )
    expect((await endpoints(['rotate', endpoint.id, '--keep-old-for', '0'])).stdout).toContain(
      'The old secret is no longer used.',
    )
    const windows = (await auditEntries(db)).slice(1).map(({ details }) => details['keepOldForMs'])
    expect(windows).toEqual([7_200_000, 0])
  })

  it('encrypt says how many endpoints it has encrypted with the newest key', async () => {
    await create()
    expect((await endpoints(['encrypt'])).stdout).toMatch(
      /^The secrets and headers of 0 endpoints were encrypted with the newest key\./,
    )
    const newer = await temporaryDirectory()
    const key = Buffer.alloc(32, 8).toString('hex')
    await writeFile(join(newer, 'leasehold.config.mjs'), `export default { secretKey: '${key},${KEY}' }`)
    const { code, stdout } = await endpoints(['encrypt', '--json'], { workingDirectory: newer })
    await removeDirectory(newer)
    expect({ code, printed: JSON.parse(stdout) as unknown }).toEqual({ code: 0, printed: { changed: 1 } })
  })

  it('disable stops deliveries to an endpoint, and enable resumes them', async () => {
    const id = await create()
    expect((await endpoints(['disable', id, '--reason', 'too slow'])).stdout).toContain('gets no more events')
    expect((await endpoints(['show', id])).stdout).toContain('State         disabled: too slow')
    expect((await endpoints(['enable', id])).stdout).toContain('gets events; its circuit is closed')
    expect((await endpoints(['show', id])).stdout).toContain('State         enabled')
  })

  it('test writes a delivery to the endpoint alone, and is refused while it is disabled', async () => {
    const id = await create()
    await create()
    const { code, stdout } = await endpoints(['test', id, '--reason', 'does it arrive?'])
    expect({ code, stdout }).toEqual({
      code: 0,
      stdout: expect.stringMatching(
        /^Sent: delivery \d+, of the type webhook\.test\. `leasehold webhooks show \d+`/,
      ),
    })
    expect((await json(['test', id])) as unknown).toEqual({
      id: expect.any(String),
      eventId: expect.any(String),
    })
    await endpoints(['disable', id])
    expect(await endpoints(['test', id])).toMatchObject({
      code: 1,
      stderr: expect.stringContaining('is disabled. Enable it first'),
    })
  })

  it('delete asks first, and without a terminal it needs --yes', async () => {
    const id = await create()
    expect(await endpoints(['delete', id])).toMatchObject({ code: 2 })
    const refused = await endpoints(['delete', id], { answer: 'n' })
    expect(refused).toMatchObject({ code: 1, stderr: 'Nothing was changed.\n' })
    expect(refused.asked[0]).toContain(HOOKS)
    expect((await json(['list'])).endpoints).toHaveLength(1)
    expect(await endpoints(['delete', id], { answer: 'yes' })).toMatchObject({ code: 0 })
    expect((await json(['list'])).endpoints).toEqual([])
    expect(await endpoints(['delete', await create(), '--yes'])).toMatchObject({ code: 0, asked: [] })
  })
})

describe('send', () => {
  it('send writes an event for the subscribed endpoints, and says to how many', async () => {
    await create('--tenant', 'acme', '--ordered')
    await create('--tenant', 'acme', '--types', 'user.*')
    const eventId = '0190b3a0-0000-7000-8000-00000000000a'
    const args = ['send', 'order.paid', '-', '--tenant', 'acme', '--key', 'c 1', '--event-id', eventId]
    expect(await webhooks(args, { input: '{"id": 7}' })).toMatchObject({
      code: 0,
      stdout: `Sent: order.paid to 1 endpoint, with the event id ${eventId}.\n`,
    })
    const [written] = await writtenDeliveries(db)
    expect(written).toMatchObject({ event_id: eventId, ordering_key: 'c 1' })
    expect(JSON.parse(written?.body ?? '')).toMatchObject({ type: 'order.paid', data: { id: 7 } })
    const second = await webhooks([...args, '--json'], { input: '{"id": 7}' })
    expect(JSON.parse(second.stdout)).toEqual({ eventId, deliveries: 0 })
    expect((await webhooks(['send', 'order.paid'])).stdout).toContain('Nothing sent')
  })

  it.each([
    [['send', 'order.paid', '{'], 'the payload is not JSON', 2],
    [['send', '', '1'], 'event.type is', 1],
    [['send', 'a', '1', '--event-id', 'one'], "event.eventId is 'one'", 1],
    [['send', 'a', '1', '--available-at', 'soon'], '--available-at is "soon"', 2],
  ])('the arguments %j are refused', async (args, message, code) => {
    const called = await webhooks(args)
    expect(called.stderr).toContain(message)
    expect(called.code).toBe(code)
  })
})
