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

describe('replay', () => {
  it('replay of one delivery by its id brings it back, with who and why in the audit', async () => {
    await makeDeliveries(db, endpoint, 2, FAILED)
    const { code, stdout } = await webhooks(['replay', '1', ...WHY])
    expect(code).toBe(0)
    expect(stdout).toMatch(/^Replayed 1 delivery\. It is recorded in the audit as [0-9a-f-]{36}\.\n$/)
    expect(await statuses()).toEqual(['pending', 'failed'])
    expect(await auditEntries(db)).toMatchObject([
      { principal: 'ada', action: 'webhooks.replay', target: '1', details: { reason: 'it is back' } },
    ])
  })

  it('replay says why a named delivery was not replayed, with exit code 1', async () => {
    await makeDeliveries(db, endpoint, 1)
    await makeDeliveries(db, endpoint, 1, { status: 'delivered' })
    const deleted = await makeEndpoint(db)
    await makeDeliveries(db, deleted, 1, FAILED)
    await db.query({ text: 'delete from leasehold.webhook_endpoints where id = $1', values: [deleted] })
    await makeDeliveries(db, endpoint, 1, FAILED)
    const { code, stdout } = await webhooks(['replay', '1', '2', '3', '4', '5', ...WHY])
    expect(code).toBe(1)
    expect(stdout.split('\n').slice(1)).toEqual([
      '1 delivery cannot be replayed, because the endpoint was deleted.',
      '1 was not replayed: it is pending, and will be attempted anyway; `leasehold webhooks retry` attempts it now.',
      '2 was not replayed: it was delivered; name the status delivered to send it once more.',
      '3 was not replayed: its endpoint was deleted.',
      '5 was not replayed: there is no such delivery.',
      '',
    ])
    expect(await statuses()).toEqual(['pending', 'delivered', 'failed', 'pending'])
    expect((await webhooks(['replay', '2', '--status', 'delivered', ...WHY])).code).toBe(0)
    expect(await statuses()).toEqual(['pending', 'pending', 'failed', 'pending'])
  })

  it('replay by filter asks the person at the terminal, with the number; only yes means yes', async () => {
    await makeDeliveries(db, endpoint, 3, FAILED)
    const args = ['replay', '--status', 'failed', ...WHY]
    const no = await webhooks(args, { answer: 'perhaps' })
    expect(no).toMatchObject({ code: 1, stdout: '', stderr: 'Nothing was changed.\n' })
    expect(no.asked).toEqual(['Replay 3 deliveries? [y/N] '])
    expect(await statuses()).toEqual(['failed', 'failed', 'failed'])
    expect(await webhooks(args, { answer: 'yes' })).toMatchObject({ code: 0 })
    expect(await statuses()).toEqual(['pending', 'pending', 'pending'])
  })

  it('a dry run counts, needs no reason, and changes nothing', async () => {
    await makeDeliveries(db, endpoint, 3, FAILED)
    expect((await webhooks(['replay', '--status', 'failed', '--dry-run'])).stdout).toBe(
      'Would replay 3 deliveries. Nothing was changed.\n',
    )
    expect(await json(['replay', '--status', 'failed', '--dry-run'])).toEqual({
      dryRun: true,
      matched: 3,
      changed: 0,
      changedBefore: 0,
      counts: { endpointDeleted: 0, endpointDisabled: 0 },
      finished: true,
      changeId: null,
      firstId: null,
      lastId: null,
      lastDueAt: null,
      skipped: [],
    })
    expect(await statuses()).toEqual(['failed', 'failed', 'failed'])
    expect(await auditEntries(db)).toEqual([])
  })

  it('--rate and --limit are observed; deliveries that wait for a disabled endpoint are reported', async () => {
    const disabled = await makeEndpoint(db, { disabledReason: 'answered 410' })
    await makeDeliveries(db, disabled, 100, FAILED)
    const args = ['replay', '--status', 'failed', '--rate', '2', '--limit', '50', '--yes', ...WHY]
    const { code, stdout } = await webhooks(args)
    expect(code).toBe(0)
    expect(stdout).toMatch(/^Replayed 50 deliveries\. The last is due in 2\d s, at \d{4}-/)
    expect(stdout).toContain('go to a disabled endpoint, and wait until it is enabled.\n')
  })

  it.each([
    [
      [],
      /say which deliveries: by their ids, or with --endpoint.*`--status failed` means all failed deliveries/,
    ],
    [['x', ...WHY], /"x" is not an id: give the number of one of the deliveries/],
    [['1'], /--reason is missing/],
    [['--status', 'failed', ...WHY], /--yes is missing/],
    [['--status', 'pending', '--yes', ...WHY], /status is "pending"/],
    [['1', '--rate', '0', ...WHY], /--rate is "0": give the deliveries per second/],
    [['1', '--event', '0190b3a0-0000-7000-8000-000000000001', ...WHY], /--event and ids exclude each other/],
  ])('the arguments %j are refused as wrong usage, and nothing is changed', async (args, message) => {
    await makeDeliveries(db, endpoint, 1, FAILED)
    const { code, stderr, stdout } = await webhooks(['replay', ...args])
    expect({ code, stdout }).toEqual({ code: 2, stdout: '' })
    expect(stderr).toMatch(message)
    expect(await statuses()).toEqual(['failed'])
  })
})

describe('replay --since', () => {
  it('replay --since brings back all deliveries that failed since then, of one endpoint or of all', async () => {
    const other = await makeEndpoint(db)
    await makeDeliveries(db, endpoint, 1, { ...FAILED, agoMs: 7_200_000 })
    await makeDeliveries(db, endpoint, 2, FAILED)
    await makeDeliveries(db, other, 2, FAILED)
    const args = ['replay', '--since', '1h', '--yes', ...WHY]
    expect(await json([...args, '--endpoint', other])).toMatchObject({
      matched: 2,
      changed: 2,
      finished: true,
    })
    expect((await webhooks(args)).stdout).toMatch(/^Replayed 2 deliveries\./)
    expect(await statuses()).toEqual(['failed', 'pending', 'pending', 'pending', 'pending'])
    expect((await webhooks(args)).stdout).toBe('No delivery was replayed: none matches.\n')
    expect((await auditEntries(db)).map(({ action, target }) => [action, target])).toEqual([
      ['webhooks.replay', other],
      ['webhooks.replay', null],
    ])
  })

  it.each([
    [['--since', 'x', ...WHY, '--yes'], /--since is "x"/],
    [['--since', '1h', ...WHY], /--yes is missing/],
    [['--since', '1h', '--yes'], /--reason is missing/],
  ])('the arguments %j are refused as wrong usage', async (args, message) => {
    const { code, stderr } = await webhooks(['replay', ...args])
    expect(code).toBe(2)
    expect(stderr).toMatch(message)
  })
})

describe('retry', () => {
  it('retry makes a pending delivery due now; one that is finished is reported, with exit code 1', async () => {
    await makeDeliveries(db, endpoint, 1, { attempts: 2 })
    await makeDeliveries(db, endpoint, 1, { status: 'failed' })
    await db.query({
      text: "update leasehold.webhook_outbox set next_attempt_at = now() + interval '5 hours' where id = 1",
    })
    expect((await webhooks(['list', '--status', 'pending'])).stdout).toContain('due in 5 h')
    const { code, stdout } = await webhooks(['retry', '1', '2', ...WHY])
    expect(code).toBe(1)
    expect(stdout.split('\n')).toEqual([
      expect.stringMatching(/^Retried 1 delivery\. It is recorded in the audit as [0-9a-f-]{36}\.$/),
      '2 was not retried: it is failed; a replay sends it once more.',
      '',
    ])
    expect((await webhooks(['list', '--status', 'pending'])).stdout).not.toContain('due in')
  })

  it('retry by filter asks, and a dry run counts', async () => {
    await makeDeliveries(db, endpoint, 2, { attempts: 1 })
    await db.query({
      text: "update leasehold.webhook_outbox set next_attempt_at = now() + interval '5 hours'",
    })
    expect((await webhooks(['retry', '--endpoint', endpoint, '--dry-run'])).stdout).toBe(
      'Would retry 2 deliveries. Nothing was changed.\n',
    )
    const { asked, code } = await webhooks(['retry', '--endpoint', endpoint, ...WHY], { answer: 'y' })
    expect({ asked, code }).toEqual({ asked: ['Retry 2 deliveries? [y/N] '], code: 0 })
  })
})

describe('cancel', () => {
  it('cancel gives up pending deliveries; those in flight, finished or unknown are reported, with exit code 1', async () => {
    await makeDeliveries(db, endpoint, 1)
    await makeDeliveries(db, endpoint, 1, { owner: 'host:1' })
    await makeDeliveries(db, endpoint, 1, { status: 'delivered' })
    const { code, stdout } = await webhooks(['cancel', '1', '2', '3', '4', ...WHY])
    expect(code).toBe(1)
    expect(stdout.split('\n')).toEqual([
      expect.stringMatching(/^Cancelled 1 delivery\. It is recorded in the audit as [0-9a-f-]{36}\.$/),
      '1 more is in flight, and not cancelled.',
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

  it('cancel has no --since: a pending delivery has no time of failure', async () => {
    const { code, stderr } = await webhooks(['cancel', '--since', '2h', ...WHY])
    expect(code).toBe(2)
    expect(stderr).toContain("unknown option '--since'")
    expect((await webhooks(['cancel', '--help'])).stdout).not.toContain('--since')
    expect((await webhooks(['replay', '--help'])).stdout).toContain('--since')
  })

  it('cancel by filter asks, and a dry run counts', async () => {
    await makeDeliveries(db, endpoint, 3)
    expect(await json(['cancel', '--endpoint', endpoint, '--dry-run'])).toEqual({
      dryRun: true,
      matched: 3,
      changed: 0,
      changedBefore: 0,
      counts: { inFlight: 0 },
      finished: true,
      changeId: null,
      firstId: null,
      lastId: null,
      lastDueAt: null,
      skipped: [],
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
  ])('the arguments %j are refused as wrong usage', async (args, message) => {
    const { code, stderr } = await webhooks(['cancel', ...args])
    expect(code).toBe(2)
    expect(stderr).toMatch(message)
  })
})
