/** What a dispatcher logs about its deliveries, and what it never logs. */
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { type Proxy, startProxy } from '../../../test/support/proxy.ts'
import { hold, useReceivers } from '../../../test/support/receiver.ts'
import { deliveries, deliveryStatuses, useDispatchers } from '../../../test/support/running-dispatcher.ts'
import { addEndpoint, SECRET_KEY } from '../../../test/support/webhook-endpoints.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { createLog, logEvents } from '../../observe/log.ts'
import { openDatabase } from '../../postgres/database.ts'
import { Events, type RuntimeOptions } from '../../worker/index.ts'
import { A_TOKEN } from '../../../test/support/tokens.ts'

useQuietProcess()
const { url } = useDatabase()
const db = openDatabase({ url })
const startDispatcher = useDispatchers(url)
const receiver = useReceivers()
const proxies: Proxy[] = []
const settings = { leaseMs: 6_000, heartbeatMs: 400, reaperIntervalMs: 100, shutdownTimeoutMs: 100 }
const BOUND = { timeout: 120_000, interval: 20 }

beforeEach(async () =>
  db.query({
    text: `truncate leasehold.webhook_outbox, leasehold.webhook_endpoints;
      alter table leasehold.webhook_outbox drop constraint if exists no_teapots`,
  }),
)
afterAll(async () => {
  await db.close()
  await Promise.all(proxies.splice(0).map(async (proxy) => proxy.close()))
})

type Entry = Readonly<Record<string, unknown>>

/** A log, its lines, and the options that make a runtime write to it. */
function openLog(
  level = 'trace',
  events = new Events(),
): {
  readonly lines: string[]
  entries(event: string): Entry[]
  readonly options: Pick<RuntimeOptions, 'events' | 'log'>
} {
  const lines: string[] = []
  const log = createLog({ level, format: 'json', write: (line) => void lines.push(line) })
  logEvents(events, log)
  return {
    lines,
    // Each line of this format is one object.
    entries: (event) =>
      lines.map((line) => JSON.parse(line) as Entry).filter((entry) => entry['event'] === event),
    options: { events, log },
  }
}

async function send(payload: object): Promise<void> {
  await db.query({ text: "select leasehold.send_webhook('test.happened', $1)", values: [payload] })
}

describe('renewals', () => {
  it('WH-FR-005-AC1, WH-FR-005-AC2: a failed renewal is logged with delivery, worker, error code and message, and differs from a settlement and a lost lease', async () => {
    const proxy = await startProxy(url)
    proxies.push(proxy)
    const [done, taken, unreachable] = [await receiver(), await receiver(), await receiver()]
    const answers = [done, taken, unreachable].map((target) => hold(target))
    for (const target of [done, taken, unreachable]) await addEndpoint(db, target.url)
    await send({ n: 1 })
    const log = openLog()
    const { runtime } = await startDispatcher({ settings }, { ...log.options, databaseUrl: proxy.url })
    await Promise.all([done, taken, unreachable].map(async (target) => target.reached(1)))
    const ids = (await deliveries(db)).map(({ id }) => id)
    await expect.poll(() => log.entries('renewed').length, BOUND).toBeGreaterThan(0)

    answers[0]?.letGo()
    await expect.poll(() => log.entries('settled').length, BOUND).toBe(1)
    await db.query({
      text: `update leasehold.webhook_outbox set lease_owner = 'another', lease_token = lease_token + 1 where id = $1`,
      values: [ids[1]],
    })
    await expect.poll(() => log.entries('lost').length, BOUND).toBe(1)
    await proxy.refuse()
    proxy.cut()
    await expect.poll(() => log.entries('lost').length, BOUND).toBe(2)

    const worker = runtime.id
    expect(log.entries('settled')).toMatchObject([{ outcome: 'done', ids: [ids[0]], worker }])
    expect(log.entries('lost')).toMatchObject([
      { level: 'warn', id: ids[1], worker, token: A_TOKEN, reason: 'taken' },
      { level: 'warn', id: ids[2], worker, token: A_TOKEN, reason: 'heartbeatFailed' },
    ])
    const [failure] = log.entries('renewalFailed')
    expect(failure).toMatchObject({
      level: 'warn',
      ids: [ids[2]],
      worker,
      table: 'leasehold.webhook_outbox',
      err: { code: expect.stringMatching(/\w/), message: expect.stringMatching(/\w/) },
    })
    await proxy.accept()
  })

  it('WH-FR-005-AC2: at the level info, the log distinguishes an error from a lost lease, and has no line about a renewal that ended because the delivery was done, which the level debug has', async () => {
    const proxy = await startProxy(url)
    proxies.push(proxy)
    const targets = [await receiver(), await receiver(), await receiver()]
    const answers = targets.map((target) => hold(target))
    for (const target of targets) await addEndpoint(db, target.url)
    await send({ n: 1 })
    const followed = new Events()
    const [log, debugLog] = [openLog('info', followed), openLog('debug', followed)]
    const { events } = await startDispatcher({ settings }, { ...log.options, databaseUrl: proxy.url })
    await Promise.all(targets.map(async (target) => target.reached(1)))
    const [done, taken, unreachable] = (await deliveries(db)).map(({ id }) => id)

    const settled = events.next('settled')
    answers[0]?.letGo()
    await settled
    const lost = events.next('lost')
    await db.query({
      text: `update leasehold.webhook_outbox set lease_owner = 'another', lease_token = lease_token + 1 where id = $1`,
      values: [taken],
    })
    await lost
    const lostToo = events.next('lost')
    await proxy.refuse()
    proxy.cut()
    await lostToo

    expect(log.entries('lost').map(({ id, reason, level }) => ({ id, reason, level }))).toEqual([
      { id: taken, reason: 'taken', level: 'warn' },
      { id: unreachable, reason: 'heartbeatFailed', level: 'warn' },
    ])
    const failures = log.entries('renewalFailed')
    expect(failures.length).toBeGreaterThan(0)
    for (const { ids } of failures) expect(ids).toEqual([unreachable])
    const aboutDone = ({ lines }: Pick<typeof log, 'lines'>): string[] =>
      lines.filter((line) => line.includes(`"${done}"`))
    expect(aboutDone(log)).toEqual([])
    // It is there at the level debug: what is missing above is this line.
    expect(debugLog.entries('settled')).toMatchObject([{ level: 'debug', outcome: 'done', ids: [done] }])
    expect(aboutDone(debugLog).some((line) => line.includes('"event":"settled"'))).toBe(true)
    await proxy.accept()
  })
})

it('a delivery that fails is logged with the type of its event and the id of its endpoint', async () => {
  const target = await receiver((_, response) => void response.writeHead(500).end())
  const { id: endpoint } = await addEndpoint(db, target.url)
  await send({ n: 1 })
  const log = openLog('warn')
  await startDispatcher({ settings }, log.options)
  await expect.poll(() => log.entries('failed').length, BOUND).toBeGreaterThan(0)
  const [{ id } = {}] = await deliveries(db)
  expect(log.entries('failed')[0]).toMatchObject({ id, eventType: 'test.happened', endpoint })
})

describe('WH-NFR-003: no log line contains a body, a signature or a secret', () => {
  const BODY = 'body-8f41c2'
  const HEADER = 'header-30ab77'
  const RESPONSE = 'response-5d2e90'

  /** Everything that must not be in the log, given the requests that arrived. */
  function confidential(
    secrets: readonly string[],
    received: readonly { readonly headers: Readonly<Record<string, unknown>> }[],
  ): string[] {
    const signatures = received.map(({ headers }) => String(headers['webhook-signature']))
    expect(signatures.every((signature) => signature.startsWith('v1,'))).toBe(true)
    return [
      BODY,
      HEADER,
      RESPONSE,
      SECRET_KEY,
      ...secrets.flatMap((secret) => [secret, secret.replace('whsec_', '')]),
      ...signatures.flatMap((signature) => [signature, signature.replace('v1,', '')]),
    ]
  }

  it('nothing confidential is logged for deliveries, failures, circuits, a disabled endpoint and an unreadable secret', async () => {
    const answer = (status: number) =>
      receiver((_, response) => void response.writeHead(status).end(RESPONSE))
    const targets = await Promise.all([200, 500, 410, 307].map(answer))
    const headers = { 'x-api-key': HEADER }
    const made = []
    for (const target of targets) made.push(await addEndpoint(db, target.url, { headers }))
    const broken = await addEndpoint(db, targets[0]?.url ?? '', { secret: 'enc:v1:no:such:secret' })
    for (let n = 0; n < 5; n += 1) await send({ marker: BODY, n })
    const log = openLog()
    const { runtime } = await startDispatcher(
      { settings, schedule: [0], circuitBreaker: { failureThreshold: 2, openMs: 50 } },
      log.options,
    )
    await expect.poll(async () => (await deliveryStatuses(db))['delivered'] ?? 0, BOUND).toBe(5)
    const [, failing, disabled, redirecting] = targets
    await Promise.all([failing, disabled, redirecting].map(async (target) => target?.reached(1)))
    await expect
      .poll(() => log.lines.filter((line) => line.includes('circuit')).length, BOUND)
      .toBeGreaterThan(0)
    await expect
      .poll(() => log.lines.filter((line) => line.includes('disabled')).length, BOUND)
      .toBeGreaterThan(0)
    await runtime.stop()

    const text = log.lines.join('')
    expect(log.entries('started').length).toBeGreaterThan(0)
    expect(log.entries('settled').length).toBeGreaterThan(0)
    expect(text).toContain(`using webhook endpoint ${broken.id}`)
    const hidden = confidential(
      made.map(({ secret }) => secret),
      targets.flatMap(({ received }) => received),
    )
    expect(hidden.filter((words) => text.includes(words))).toEqual([])
  })

  it('nothing confidential is logged when the database refuses a settlement and quotes the row', async () => {
    await db.query({
      text: 'alter table leasehold.webhook_outbox add constraint no_teapots check (last_status is distinct from 418)',
    })
    const target = await receiver((_, response) => void response.writeHead(418).end(RESPONSE))
    const { secret } = await addEndpoint(db, target.url, { headers: { 'x-api-key': HEADER } })
    await send({ marker: BODY })
    const log = openLog()
    const { runtime } = await startDispatcher({ settings }, log.options)
    await expect.poll(() => log.entries('dataError').length, BOUND).toBeGreaterThan(0)
    await runtime.stop()
    const text = log.lines.join('')
    expect(text).toContain('no_teapots')
    expect(confidential([secret], target.received).filter((words) => text.includes(words))).toEqual([])
  })

  it('nothing confidential is logged when renewals fail because the database is unavailable', async () => {
    const proxy = await startProxy(url)
    proxies.push(proxy)
    const target = await receiver()
    hold(target)
    const { secret } = await addEndpoint(db, target.url, { headers: { 'x-api-key': HEADER } })
    await send({ marker: BODY })
    const log = openLog()
    await startDispatcher({ settings }, { ...log.options, databaseUrl: proxy.url })
    await target.reached(1)
    await proxy.refuse()
    proxy.cut()
    await expect.poll(() => log.entries('renewalFailed').length, BOUND).toBeGreaterThan(0)
    await proxy.accept()
    const text = log.lines.join('')
    const password = new URL(url).password
    const hidden = [...confidential([secret], target.received), ...(password === '' ? [] : [password])]
    expect(hidden.filter((words) => text.includes(words))).toEqual([])
  })
})
