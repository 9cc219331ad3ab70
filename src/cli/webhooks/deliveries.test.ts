import { beforeEach, describe, expect, it } from 'vitest'
import { useCommandLine } from '../../../test/support/command-line.ts'
import { auditEntries } from '../../../test/support/outbox-rows.ts'
import { deliveryStates, makeDeliveries } from '../../../test/support/webhook-rows.ts'
import { forgetWebhooks, makeEndpoint } from '../../../test/support/webhook-endpoints.ts'

const { db, call: webhooks, json } = useCommandLine('webhooks')
let endpoint = ''
beforeEach(async () => {
  await forgetWebhooks(db)
  endpoint = await makeEndpoint(db, { url: 'https://one.example/hook' })
})

const FAILED = { status: 'failed' } as const
const WHY = ['--reason', 'it is back', '--principal', 'ada']

async function statuses(): Promise<string[]> {
  return (await deliveryStates(db)).map((row) => row.delivery_status)
}

describe('list', () => {
  it('shows a table, newest first, with what matters in each state', async () => {
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
      'ID | STATUS | TYPE | ENDPOINT | FAILED | SENT | NOTE',
      `4 | pending | order.sent | ${deleted} (deleted) | 0 | 0 s ago | due in 10 min`,
      expect.stringMatching(
        /^3 \| pending \| order\.paid \| https:\/\/one\.example\/hook \| 0 \| \d+ s ago \| in flight, by host:1$/,
      ),
      '2 | delivered | order.paid | https://one.example/hook | 0 | 3 min ago | delivered 3 min ago',
      '1 | failed | order.paid | https://one.example/hook | 10 | 2 h ago | failed 2 h ago: first line second [31mline',
      '',
    ])
  })

  it('is cut to the width of the terminal, and goes on page by page', async () => {
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

  it('chooses by endpoint, tenant, state, type, event, time and error', async () => {
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
    expect(await found('--failed-since', '3h')).toEqual(['1'])
    expect(await found('--failed-since', '1h')).toEqual([])
    expect(await found('--error', 'timeout')).toEqual(['1'])
    expect((await webhooks(['list', '--type', 'nothing'])).stdout).toBe('No such deliveries.\n')
  })

  it('none are none', async () => {
    expect((await webhooks(['list'])).stdout).toBe('There are no deliveries.\n')
    expect(await json(['list'])).toEqual({ deliveries: [], next: null })
  })

  it.each([
    [['--status', 'failed,lost'], /--status is "failed,lost": the states are pending, delivered, failed/],
    [['--endpoint', 'x'], /--endpoint is "x": give the id of an endpoint, a uuid/],
    [['--event', '17'], /--event is "17": give an event id/],
    [['--limit', '0'], /--limit is "0": give a whole number from 1 to 1000/],
    [['--before', 'x'], /--before is "x": give the id of a delivery/],
    [['--failed-since', 'yesterday'], /--failed-since is "yesterday"/],
    [['--from', '1h', '--to', '2h'], /--to is "2h": it must be later than --from/],
    [['--status', 'pending', '--failed-since', '1h'], /failedSince is /],
  ])('%j is wrongly called', async (args, message) => {
    const { code, stderr, stdout } = await webhooks(['list', ...args])
    expect({ code, stdout }).toEqual({ code: 2, stdout: '' })
    expect(stderr).toMatch(message)
  })
})

describe('show', () => {
  it('shows all there is to know, with a line for each attempt', async () => {
    await makeDeliveries(db, endpoint, 1)
    await db.query({
      text: `update leasehold.webhook_outbox set attempts = 1, last_attempt_at = now(), last_duration_ms = 12,
  last_status = 500, last_error_code = 'httpStatus', last_error = 'HTTP 500', last_response = 'oo\u001b[2Jps'`,
    })
    const { code, stdout } = await webhooks(['show', '1'])
    expect(code).toBe(0)
    expect(stdout).toMatch(/^Delivery {6}1\nEvent id {6}\S+\nType {10}order\.paid\nEndpoint {6}https:\/\/one/)
    expect(stdout).toContain(`(${endpoint})\n`)
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

describe('requeue', () => {
  it('brings back one by its id, and says who and why in the audit', async () => {
    await makeDeliveries(db, endpoint, 2, FAILED)
    const { code, stdout } = await webhooks(['requeue', '1', ...WHY])
    expect(code).toBe(0)
    expect(stdout).toMatch(/^Requeued 1 delivery\. In the audit it is [0-9a-f-]{36}\.\n$/)
    expect(await statuses()).toEqual(['pending', 'failed'])
    expect(await auditEntries(db)).toMatchObject([
      { principal: 'ada', action: 'webhooks.requeue', target: '1', details: { reason: 'it is back' } },
    ])
  })

  it('says of each that was named and not requeued why, with exit code 1', async () => {
    await makeDeliveries(db, endpoint, 1)
    await makeDeliveries(db, endpoint, 1, { status: 'delivered' })
    const deleted = await makeEndpoint(db)
    await makeDeliveries(db, deleted, 1, FAILED)
    await db.query({ text: 'delete from leasehold.webhook_endpoints where id = $1', values: [deleted] })
    await makeDeliveries(db, endpoint, 1, FAILED)
    const { code, stdout } = await webhooks(['requeue', '1', '2', '3', '4', '5', ...WHY])
    expect(code).toBe(1)
    expect(stdout.split('\n').slice(1)).toEqual([
      '1 delivery stays as it is: its endpoint was deleted.',
      '1 was not requeued: it is pending, and on its way anyhow.',
      '2 was not requeued: it was delivered; --status delivered sends it once more.',
      '3 was not requeued: its endpoint was deleted.',
      '5 was not requeued: there is no such delivery.',
      '',
    ])
    expect(await statuses()).toEqual(['pending', 'delivered', 'failed', 'pending'])
    expect((await webhooks(['requeue', '2', '--status', 'delivered', ...WHY])).code).toBe(0)
    expect(await statuses()).toEqual(['pending', 'pending', 'failed', 'pending'])
  })

  it('by filter it asks the person at the terminal, with the number; only yes means yes', async () => {
    await makeDeliveries(db, endpoint, 3, FAILED)
    const args = ['requeue', '--status', 'failed', ...WHY]
    const no = await webhooks(args, { answer: 'perhaps' })
    expect(no).toMatchObject({ code: 1, stdout: '', stderr: 'Nothing was changed.\n' })
    expect(no.asked).toEqual(['Requeue 3 deliveries? [y/N] '])
    expect(await statuses()).toEqual(['failed', 'failed', 'failed'])
    expect(await webhooks(args, { answer: 'yes' })).toMatchObject({ code: 0 })
    expect(await statuses()).toEqual(['pending', 'pending', 'pending'])
  })

  it('a dry run counts, needs no reason, and changes nothing', async () => {
    await makeDeliveries(db, endpoint, 3, FAILED)
    expect((await webhooks(['requeue', '--status', 'failed', '--dry-run'])).stdout).toBe(
      'Would requeue 3 deliveries. Nothing was changed.\n',
    )
    expect(await json(['requeue', '--status', 'failed', '--dry-run'])).toEqual({
      dryRun: true,
      matched: 3,
      requeued: 0,
      endpointGone: 0,
      endpointDisabled: 0,
      finished: true,
      requeue: null,
      lastDueAt: null,
      leftOut: [],
    })
    expect(await statuses()).toEqual(['failed', 'failed', 'failed'])
    expect(await auditEntries(db)).toEqual([])
  })

  it('--rate and --limit are kept; what waits for a disabled endpoint is told', async () => {
    const disabled = await makeEndpoint(db, { disabledReason: 'answered 410' })
    await makeDeliveries(db, disabled, 100, FAILED)
    const args = ['requeue', '--status', 'failed', '--rate', '2', '--limit', '50', '--yes', ...WHY]
    const { code, stdout } = await webhooks(args)
    expect(code).toBe(0)
    expect(stdout).toMatch(/^Requeued 50 deliveries\. The last is due in 2\d s, at \d{4}-/)
    expect(stdout).toContain('go to a disabled endpoint, and wait until it is enabled.\n')
  })

  it.each([
    [
      [],
      /say which deliveries: by their ids, or with --endpoint.*`--status failed` means all that has failed/,
    ],
    [['x', ...WHY], /"x" is no delivery/],
    [['1'], /--reason is missing/],
    [['--status', 'failed', ...WHY], /--yes is missing/],
    [['--status', 'pending', '--yes', ...WHY], /status is "pending"/],
    [['1', '--rate', '0', ...WHY], /--rate is "0": give the deliveries per second/],
    [['1', '--event', '0190b3a0-0000-7000-8000-000000000001', ...WHY], /--event and ids do not go together/],
  ])('%j is wrongly called, and changes nothing', async (args, message) => {
    await makeDeliveries(db, endpoint, 1, FAILED)
    const { code, stderr, stdout } = await webhooks(['requeue', ...args])
    expect({ code, stdout }).toEqual({ code: 2, stdout: '' })
    expect(stderr).toMatch(message)
    expect(await statuses()).toEqual(['failed'])
  })
})

describe('recover', () => {
  it('brings back all that failed since, of one endpoint or of all', async () => {
    const other = await makeEndpoint(db)
    await makeDeliveries(db, endpoint, 1, { ...FAILED, agoMs: 7_200_000 })
    await makeDeliveries(db, endpoint, 2, FAILED)
    await makeDeliveries(db, other, 2, FAILED)
    const args = ['recover', '--since', '1h', '--yes', ...WHY]
    expect(await json([...args, '--endpoint', other])).toMatchObject({
      matched: 2,
      requeued: 2,
      finished: true,
    })
    expect((await webhooks(args)).stdout).toMatch(/^Requeued 2 deliveries\./)
    expect(await statuses()).toEqual(['failed', 'pending', 'pending', 'pending', 'pending'])
    expect((await webhooks(args)).stdout).toBe('Nothing was requeued: no delivery matches.\n')
    expect((await auditEntries(db)).map(({ action, target }) => [action, target])).toEqual([
      ['webhooks.recover', other],
      ['webhooks.recover', null],
    ])
  })

  it.each([
    [[...WHY, '--yes'], /--since is missing: say since when/],
    [['--since', 'x', ...WHY, '--yes'], /--since is "x"/],
    [['--since', '1h', ...WHY], /--yes is missing/],
    [['--since', '1h', '--yes'], /--reason is missing/],
  ])('%j is wrongly called', async (args, message) => {
    const { code, stderr } = await webhooks(['recover', ...args])
    expect(code).toBe(2)
    expect(stderr).toMatch(message)
  })
})

describe('cancel', () => {
  it('gives up pending ones; what is in flight, finished or unknown is told, with exit code 1', async () => {
    await makeDeliveries(db, endpoint, 1)
    await makeDeliveries(db, endpoint, 1, { owner: 'host:1' })
    await makeDeliveries(db, endpoint, 1, { status: 'delivered' })
    const { code, stdout } = await webhooks(['cancel', '1', '2', '3', '4', ...WHY])
    expect(code).toBe(1)
    expect(stdout.split('\n')).toEqual([
      expect.stringMatching(/^Cancelled 1 delivery\. In the audit it is [0-9a-f-]{36}\.$/),
      '1 delivery in flight: left alone.',
      '2 was not cancelled: it is in flight: host:1 delivers it at this moment.',
      '3 was not cancelled: it is delivered already.',
      '4 was not cancelled: there is no such delivery.',
      '',
    ])
    expect(await statuses()).toEqual(['failed', 'pending', 'delivered'])
    expect((await webhooks(['list', '--error', 'cancelled'])).stdout).toContain(
      'cancelled by ada: it is back',
    )
  })

  it('by filter it asks; a dry run counts', async () => {
    await makeDeliveries(db, endpoint, 3)
    expect(await json(['cancel', '--endpoint', endpoint, '--dry-run'])).toEqual({
      dryRun: true,
      matched: 3,
      inFlight: 0,
      cancelled: 0,
      cancel: null,
      finished: true,
      leftOut: [],
    })
    const { asked, code } = await webhooks(['cancel', '--endpoint', endpoint, ...WHY], { answer: 'y' })
    expect(asked).toEqual(['Cancel 3 deliveries? [y/N] '])
    expect(code).toBe(0)
    expect(await statuses()).toEqual(['failed', 'failed', 'failed'])
  })

  it.each([
    [[], /say which deliveries/],
    [['--status', 'failed', '--yes', ...WHY], /status is "failed".*Only pending/],
    [['1'], /--reason is missing/],
  ])('%j is wrongly called', async (args, message) => {
    const { code, stderr } = await webhooks(['cancel', ...args])
    expect(code).toBe(2)
    expect(stderr).toMatch(message)
  })
})

it('a schema without webhooks is told what to do', async () => {
  const { code, stderr } = await webhooks(['list', '--schema', 'nowhere'])
  expect(code).toBe(1)
  expect(stderr).toBe(
    'leasehold: SETTING_INVALID: The schema nowhere has no webhooks yet. Run `leasehold migrate`, or name another schema with --schema.\n',
  )
})
