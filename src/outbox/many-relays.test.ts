/** Three relay processes over 3,000 ordering keys, one of them killed every half a second, eight times. */
import { afterAll, beforeAll, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useProcesses } from '../../test/support/processes.ts'
import {
  type Arrival,
  arrivals,
  createSink,
  startRelay,
  type WorkerProcess,
} from '../../test/support/worker-process.ts'
import { statuses } from '../../test/support/running-relay.ts'
import { openDatabase } from '../postgres/database.ts'

const { url } = useDatabase()
const processes = useProcesses()
const db = openDatabase({ url })
// On a slow machine, kills without an end would leave the relays no time to work.
const [KEYS, EVENTS, KILL_EVERY_MS, KILLS] = [3_000, 10, 500, 8]

beforeAll(async () => {
  await createSink(db)
  // Half of the keys have their events side by side, half of them in turn.
  await db.query({
    text: `insert into leasehold.outbox (event_type, payload, ordering_key)
      select 'test.happened', jsonb_build_object('n', n), 'key ' || k
      from generate_series(1, $1::int) as k, generate_series(1, $2::int) as n
      order by case when k % 2 = 0 then k else n end, k, n`,
    values: [KEYS, EVENTS],
  })
  await db.query({ text: 'analyze leasehold.outbox' })
})
afterAll(async () => db.close())

it('LIFE-11 LIFE-13 LIFE-18: every event arrives in the order of its key, and twice only where a relay died in between', async () => {
  const start = (): WorkerProcess => startRelay(processes, { databaseUrl: url, tell: ['trouble'] })
  const running = [start(), start(), start()]
  const ids = new Map<WorkerProcess, string>()
  const killed = new Set<string>()

  async function idOf(relay: WorkerProcess): Promise<string> {
    const known = ids.get(relay) ?? String((await relay.heard('up'))['id'])
    ids.set(relay, known)
    return known
  }

  const isOver = async (): Promise<boolean> => {
    const { rows } = await db.query<{ left: boolean }>({
      text: "select exists (select from leasehold.outbox where status in ('PENDING', 'CLAIMED')) as left",
    })
    return rows[0]?.left === false
  }

  while (!(await isOver())) {
    // The rhythm of the kills is the scenario; nothing is asserted about it.
    await new Promise((resolve) => setTimeout(resolve, KILL_EVERY_MS))
    const victim = killed.size < KILLS ? running.shift() : undefined
    if (victim === undefined) continue
    killed.add(await idOf(victim))
    await victim.kill('SIGKILL')
    running.push(start())
  }
  for (const relay of running) {
    expect(relay.all('trouble')).toEqual([])
    await relay.kill('SIGTERM')
  }

  expect(await statuses(db)).toEqual({ PUBLISHED: KEYS * EVENTS })
  const byKey = new Map<string, Arrival[]>()
  for (const arrival of await arrivals(db)) {
    const line = byKey.get(arrival.key ?? '') ?? []
    line.push(arrival)
    byKey.set(arrival.key ?? '', line)
  }
  expect(byKey.size).toBe(KEYS)
  const wrong = [...byKey].flatMap(([key, line]) => problemsOf(key, line, killed))
  expect(wrong).toEqual([])
  expect(killed.size).toBeGreaterThan(0)
}, 600_000)

/** What is not as promised about the events of one key, in the order of their arrival. */
function problemsOf(key: string, line: readonly Arrival[], killed: ReadonlySet<string>): string[] {
  const problems: string[] = []
  let expected = 1
  let before: Arrival | undefined
  for (const arrival of line) {
    if (arrival.n === expected) expected += 1
    else if (arrival.n !== before?.n)
      problems.push(`${key}: ${arrival.n} came after ${before?.n ?? 'nothing'}`)
    else if (arrival.event_id !== before.event_id) problems.push(`${key}: ${arrival.n} came with two ids`)
    else if (!killed.has(before.relay))
      problems.push(`${key}: ${arrival.n} came twice, and ${before.relay} lives`)
    else if (BigInt(arrival.token) <= BigInt(before.token))
      problems.push(`${key}: ${arrival.n} with an older token`)
    before = arrival
  }
  if (expected !== EVENTS + 1) problems.push(`${key}: ends at ${expected - 1}`)
  return problems
}
