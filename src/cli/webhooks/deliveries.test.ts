import { beforeEach, describe, expect, it } from 'vitest'
import { useCommandLine } from '../../../test/support/command-line.ts'
import { deliveryStates, makeDeliveries } from '../../../test/support/webhook-rows.ts'
import { forgetWebhooks, makeEndpoint } from '../../../test/support/webhook-endpoints.ts'

const { db, call: webhooks, json } = useCommandLine('webhooks')
let endpoint = ''
beforeEach(async () => {
  await forgetWebhooks(db)
  endpoint = await makeEndpoint(db, { url: 'https://one.example/hook' })
})

const FAILED = { status: 'failed' } as const

describe('list', () => {
  it('list prints a table, newest first, with what matters in each state', async () => {
    await makeDeliveries(db, endpoint, 1, {
      ...FAILED,
      error: 'first line\nsecond \u001b[31mline',
      attempts: 10,
      agoMs: 7_200_000,
    })
    await makeDeliveries(db, endpoint, 1, { status: 'delivered', agoMs: 180_000 })
    await makeDeliveries(db, endpoint, 1, { owner: 'host:1' })
    const deleted = await makeEndpoint(db)
    await makeDeliveries(db, deleted, 1, { type: 'order.sent', agoMs: -600_500 })
    await db.query({ text: 'delete from leasehold.webhook_endpoints where id = $1', values: [deleted] })
    const { code, stdout } = await webhooks(['list'])
    expect(code).toBe(0)
    expect(stdout.split('\n').map((line) => line.replaceAll(/ {2,}/g, ' | '))).toEqual([
      'ID | STATUS | TYPE | ENDPOINT | FAILED | SENT | DETAILS',
      `4 | pending | order.sent | ${deleted} (deleted) | 0 | 0 s ago | due in 10 min`,
      expect.stringMatching(
        /^3 \| pending \| order\.paid \| https:\/\/one\.example\/hook \| 0 \| \d+ s ago \| in flight, by host:1$/,
      ),
      '2 | delivered | order.paid | https://one.example/hook | 0 | 3 min ago | delivered 3 min ago',
      '1 | failed | order.paid | https://one.example/hook | 10 | 2 h ago | failed 2 h ago: first line second [31mline',
      '',
    ])
  })

  it('the list is cut to the width of the terminal, and continues page by page', async () => {
    await makeDeliveries(db, endpoint, 12, { ...FAILED, error: 'x'.repeat(300) })
    const { stdout } = await webhooks(['list', '--limit', '5'], { width: 90 })
    const lines = stdout.trimEnd().split('\n')
    expect(Math.max(...lines.map(({ length }) => length))).toBeLessThanOrEqual(90)
    expect(lines.at(-1)).toBe('There are more: --before 8 shows the next ones.')
    expect(await json(['list', '--limit', '5', '--before', '4'])).toMatchObject({
      deliveries: [{ id: '3' }, { id: '2' }, { id: '1' }],
      next: null,
    })
  })

  it('list filters by endpoint, tenant, state, type, event, time and error', async () => {
    const acme = await makeEndpoint(db, { tenant: 'acme' })
    await makeDeliveries(db, endpoint, 1, { ...FAILED, code: 'timeout', agoMs: 7_200_000 })
    await makeDeliveries(db, acme, 1, { status: 'delivered', type: 'b' })
    await makeDeliveries(db, endpoint, 1, { agoMs: 60_000 })
    const found = async (...args: string[]): Promise<string[]> => {
      // What `--json` promises.
      const { deliveries } = (await json(['list', ...args])) as { deliveries: { id: string }[] }
      return deliveries.map(({ id }) => id)
    }
    const [first] = await deliveryStates(db)
    expect(await found('--endpoint', acme)).toEqual(['2'])
    expect(await found('--tenant', 'acme')).toEqual(['2'])
    expect(await found('--tenant', '')).toEqual(['3', '1'])
    expect(await found('--status', 'failed,PENDING')).toEqual(['3', '1'])
    expect(await found('--type', 'b')).toEqual(['2'])
    expect(await found('--event', first?.event_id ?? '')).toEqual(['1'])
    expect(await found('--from', '5m', '--to', '30s')).toEqual(['3'])
    expect(await found('--since', '3h')).toEqual(['1'])
    expect(await found('--since', '1h')).toEqual([])
    expect(await found('--error', 'timeout')).toEqual(['1'])
    expect((await webhooks(['list', '--type', 'nothing'])).stdout).toBe('No such deliveries.\n')
  })

  it('list says when there is nothing', async () => {
    expect((await webhooks(['list'])).stdout).toBe('There are no deliveries.\n')
    expect(await json(['list'])).toEqual({ deliveries: [], next: null })
  })

  it.each([
    [
      ['--status', 'failed,lost'],
      /--status is "failed,lost": give one or more of pending, delivered, failed/,
    ],
    [['--endpoint', 'x'], /--endpoint is "x": give the id of an endpoint, a uuid/],
    [['--event', '17'], /--event is "17": give an event id/],
    [['--limit', '0'], /--limit is "0": give a whole number from 1 to 1000/],
    [['--before', 'x'], /--before is "x": give the id of a delivery/],
    [['--since', 'yesterday'], /--since is "yesterday"/],
    [['--from', '1h', '--to', '2h'], /--to is "2h": it must be later than --from/],
    [['--status', 'pending', '--since', '1h'], /failedSince is /],
  ])('the arguments %j are refused as wrong usage', async (args, message) => {
    const { code, stderr, stdout } = await webhooks(['list', ...args])
    expect({ code, stdout }).toEqual({ code: 2, stdout: '' })
    expect(stderr).toMatch(message)
  })
})

describe('show', () => {
  it('show prints everything about a delivery, each attempt in a row of its own', async () => {
    await makeDeliveries(db, endpoint, 1)
    await db.query({
      text: `update leasehold.webhook_outbox set attempts = 1, last_attempt_at = now(), last_duration_ms = 12,
  last_status = 500, last_error_code = 'httpStatus', last_error = 'HTTP 500', expiries = 1,
  history = jsonb_build_array(jsonb_build_object('attempt', 1, 'token', 1, 'started_at', now(), 'duration_ms', 12,
    'status', 500, 'error_code', 'httpStatus', 'error', 'HTTP 500', 'response', $1::text, 'recorded_at', now()))`,
      values: ['oo\u001b[2Jps'],
    })
    const { code, stdout } = await webhooks(['show', '1'])
    expect(code).toBe(0)
    expect(stdout).toMatch(/^Delivery {6}1\nEvent id {6}\S+\nType {10}order\.paid\nEndpoint {6}https:\/\/one/)
    expect(stdout).toContain(`(${endpoint})\n`)
    expect(stdout).toMatch(/^Failed {8}1 attempt, 1 of them by an expired lease$/m)
    expect(stdout).toMatch(/^Last error {4}httpStatus: HTTP 500$/m)
    expect(stdout).toMatch(/^1 {8}\d+ s ago +12 ms +500 +httpStatus +HTTP 500 · oo \[2Jps$/m)
    expect(stdout).toContain('Body\n  {\n    "n": 1\n  }\n')
    expect(await json(['show', '1'])).toMatchObject({
      id: '1',
      endpointId: endpoint,
      status: 'pending',
      body: '{"n":1}',
      token: '0',
      history: [{ attempt: 1, status: 500, errorCode: 'httpStatus' }],
    })
  })

  it('one that is not there is an error, and what cannot be an id is wrongly called', async () => {
    const missing = await webhooks(['show', '99'])
    expect(missing).toMatchObject({ code: 1, stdout: '' })
    expect(missing.stderr).toMatch(/DELIVERY_NOT_FOUND: No delivery has the id 99\..*webhooks list/)
    expect(await webhooks(['show', '9x'])).toMatchObject({ code: 2, stdout: '' })
  })
})

it('a schema without webhooks is told what to do', async () => {
  const { code, stderr } = await webhooks(['list', '--schema', 'nowhere'])
  expect(code).toBe(1)
  expect(stderr).toBe(
    'leasehold: SETTING_INVALID: The schema nowhere has no webhooks yet. Run `leasehold migrate`, or name another schema with --schema.\n',
  )
})
