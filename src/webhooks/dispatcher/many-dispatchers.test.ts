/** Three dispatcher processes on two endpoints, one of them ordered; one dispatcher is killed every two seconds. */
import { afterAll, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { startDispatcherProcess, type WorkerProcess } from '../../../test/support/worker-process.ts'
import { useProcesses } from '../../../test/support/processes.ts'
import { type Received, useReceivers } from '../../../test/support/receiver.ts'
import { deliveryStatuses } from '../../../test/support/running-dispatcher.ts'
import { addEndpoint } from '../../../test/support/webhook-endpoints.ts'
import { openDatabase } from '../../postgres/database.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const processes = useProcesses()
const receiver = useReceivers()
const [KEYS, EVENTS, KILL_EVERY_MS, KILLS] = [150, 10, 2_000, 3]
afterAll(async () => db.close())

interface Payload {
  readonly key: string
  readonly n: number
}

/** It was sent by this test. */
const payloadOf = ({ body }: Received): Payload => (JSON.parse(body) as { data: Payload }).data

/** Events of even keys are sent key by key, those of odd keys in turn. */
async function sendEvents(): Promise<void> {
  await db.query({
    text: `select leasehold.send_webhook('test.happened', jsonb_build_object('key', k, 'n', n), ordering_key => k)
      from (select 'key ' || k as k, n from generate_series(1, $1::int) as k, generate_series(1, $2::int) as n
        order by case when k % 2 = 0 then k else n end, k, n) as events`,
    values: [KEYS, EVENTS],
  })
}

it('WH-FR-004-AC1, WH-FR-004-AC3, WH-NFR-002: every endpoint gets every event, in order if it is ordered, and twice only if a dispatcher died with it', async () => {
  const [ordered, free] = [await receiver(), await receiver()]
  // A rate that makes the deliveries last for several kills.
  const limits = { rate_per_second: 200, concurrency: 20 }
  const inOrder = await addEndpoint(db, ordered.url, { ...limits, ordered: true })
  await addEndpoint(db, free.url, limits)
  await sendEvents()

  const start = (): WorkerProcess =>
    startDispatcherProcess(processes, {
      databaseUrl: url,
      tell: ['reaped', 'trouble', 'failed'],
      dispatcher: { schedule: Array.from({ length: 30 }, () => 0) },
    })
  const running = [start(), start(), start()]
  const everyone = [...running]
  const killed = new Set<string>()
  const isOver = async (): Promise<boolean> => (await deliveryStatuses(db))['pending'] === undefined

  await ordered.reached(300)
  while (!(await isOver())) {
    const victim = killed.size < KILLS ? running.shift() : undefined
    if (victim !== undefined) {
      killed.add(String((await victim.heard('up'))['id']))
      await victim.kill('SIGKILL')
      const next = start()
      running.push(next)
      everyone.push(next)
    }
    // The interval of the kills is part of the scenario; nothing is asserted about it.
    await new Promise((resolve) => setTimeout(resolve, KILL_EVERY_MS))
  }
  for (const dispatcher of running) {
    expect(dispatcher.all('trouble')).toEqual([])
    await dispatcher.kill('SIGTERM')
  }

  expect(killed.size).toBe(KILLS)
  expect(await deliveryStatuses(db)).toEqual({ delivered: 2 * KEYS * EVENTS })
  const owners = new Set(everyone.flatMap((one) => one.all('reaped').map((line) => line['owner'])))
  expect([...owners].filter((owner) => !killed.has(String(owner)))).toEqual([])
  const errors = await db.query({
    text: 'select distinct error_code from leasehold.webhook_attempts where error_code is not null',
  })
  expect(errors.rows.filter((row) => Reflect.get(row, 'error_code') !== 'leaseExpired')).toEqual([])

  const deaths = await deathsByEvent(inOrder.id)
  for (const [name, { received }, of] of [
    ['ordered', ordered, deaths.ordered],
    ['free', free, deaths.free],
  ] as const) {
    expect(new Set(received.map(({ headers }) => headers['webhook-id'])).size, name).toBe(KEYS * EVENTS)
    expect(repeatsWithoutDeath(received, of), name).toEqual([])
  }
  expect(outOfOrder(ordered.received)).toEqual([])
}, 300_000)

/** How often a dispatcher died on the delivery of each event, by endpoint. */
async function deathsByEvent(
  orderedId: string,
): Promise<Readonly<Record<'ordered' | 'free', ReadonlyMap<string, number>>>> {
  const { rows } = await db.query<{ event: string; ordered: boolean; deaths: number }>({
    text: `select d.event_id::text as event, d.endpoint_id = $1 as ordered, count(*)::int as deaths
      from leasehold.webhook_attempts as a join leasehold.webhook_outbox as d on d.id = a.delivery_id
      where a.error_code = 'leaseExpired' group by 1, 2`,
    values: [orderedId],
  })
  const of = (wanted: boolean): ReadonlyMap<string, number> =>
    new Map(rows.filter(({ ordered }) => ordered === wanted).map(({ event, deaths }) => [event, deaths]))
  return { ordered: of(true), free: of(false) }
}

/** An event may arrive once more for each dispatcher that died on it, and every time as another attempt. */
function repeatsWithoutDeath(received: readonly Received[], deaths: ReadonlyMap<string, number>): string[] {
  const attempts = new Map<string, string[]>()
  for (const { headers } of received) {
    const id = String(headers['webhook-id'])
    attempts.set(id, [...(attempts.get(id) ?? []), String(headers['webhook-attempt'])])
  }
  return [...attempts].flatMap(([id, all]) => {
    if (new Set(all).size < all.length) return [`${id} arrived twice as the same attempt: ${all.join(', ')}`]
    const allowed = 1 + (deaths.get(id) ?? 0)
    return all.length > allowed ? [`${id} arrived ${all.length} times, and ${allowed - 1} died`] : []
  })
}

/** For each key, the next event must be the following one, or the same one a second time. */
function outOfOrder(received: readonly Received[]): string[] {
  const last = new Map<string, number>()
  const problems: string[] = []
  for (const { key, n } of received.map(payloadOf)) {
    const before = last.get(key) ?? 0
    if (n !== before && n !== before + 1) problems.push(`${key}: ${n} came after ${before}`)
    last.set(key, n)
  }
  const short = [...last].filter(([, n]) => n !== EVENTS).map(([key, n]) => `${key} ends at ${n}`)
  return [...problems, ...short, ...(last.size === KEYS ? [] : [`${last.size} keys instead of ${KEYS}`])]
}
