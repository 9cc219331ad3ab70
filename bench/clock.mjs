// Time and processor time of a drain, and how far it has come: the same for every side.
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { readStatements } from './counters.mjs'
import { cpuOfServer } from './cpu.mjs'

const POLL_MS = 5

/** Time and processor time between start and stop: of this process with its threads, and of the whole server. */
export function createClock(serverPid) {
  let began
  let first
  let ended
  const read = () => {
    const { user, system } = process.cpuUsage()
    return { at: performance.now(), nodeMs: (user + system) / 1_000, serverMs: cpuOfServer(serverPid) }
  }
  return {
    start() {
      began = read()
    },
    /** The first event was handled: what came before is the start of the runtime. */
    firstHandled() {
      first = performance.now()
    },
    stop() {
      ended = read()
    },
    reading() {
      return {
        ms: ended.at - began.at,
        startMs: first - began.at,
        nodeCpuMs: ended.nodeMs - began.nodeMs,
        serverCpuMs: ended.serverMs === undefined ? undefined : ended.serverMs - began.serverMs,
        residentMiB: process.resourceUsage().maxRSS / 1024,
      }
    },
  }
}

/** Asks the server whether an event is unfinished. A side that is not on PostgreSQL asks its own. */
async function openQuestions({ url, side }) {
  if (side.openQuestions !== undefined) return side.openQuestions({ url })
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  await client.query('set max_parallel_workers_per_gather = 0; set jit = off')
  const question = `select unsettled from (${side.unsettled}) as bench_question`
  return {
    client,
    isUnsettled: async () => (await client.query(question)).rows[0].unsettled,
    close: async () => client.end(),
  }
}

/**
 * Counts handled events. `settled` resolves once all have been handled and the server, asked every few milliseconds from
 * then on, no longer has one that is unfinished. No system's own opinion of being done is trusted.
 */
export async function createProgress({ url, clock, events, side, windowSize }) {
  const questions = await openQuestions({ url, side })
  const { client } = questions
  const windows = windowSize === undefined ? undefined : createWindows(client, windowSize)
  let count = 0
  let allHandled
  const handledAll = new Promise((resolve) => {
    allHandled = resolve
  })
  return {
    /** `createdAt`: when its transaction began, where the system tells its handlers. */
    handled(createdAt) {
      if (count === 0) clock.firstHandled()
      count += 1
      windows?.handled(count, createdAt)
      if (count === events) allHandled()
    },
    claimed(ms) {
      windows?.claimed(ms)
    },
    settled: (async () => {
      await windows?.start()
      await handledAll
      while (await questions.isUnsettled()) await delay(POLL_MS)
    })(),
    /** Once the clock has been stopped. */
    async reading({ isComplete = true } = {}) {
      const told = await windows?.reading()
      await questions.close()
      if (isComplete && count !== events) throw new Error(`${count} events were handled instead of ${events}`)
      return told === undefined ? {} : { windows: told }
    },
  }
}

/** The drain in portions of equal size, to see whether it slows down. */
function createWindows(client, size) {
  const ends = []
  let claims = []
  let latencies = []
  const end = (count) => {
    ends.push({ count, at: performance.now(), claims, latencies, statements: readStatements(client) })
    claims = []
    latencies = []
  }
  return {
    async start() {
      end(0)
      await ends[0].statements
    },
    handled(count, createdAt) {
      if (createdAt !== undefined) latencies.push(Date.now() - createdAt.getTime())
      if (count % size === 0) end(count)
    },
    claimed(ms) {
      claims.push(ms)
    },
    async reading() {
      const statements = await Promise.all(ends.map(async (one) => one.statements))
      return ends.slice(1).map(({ count, at, claims, latencies }, i) => ({
        events: count,
        perSecond: (size / (at - ends[i].at)) * 1_000,
        ...(claims.length === 0 ? {} : { claimMs: quantiles(claims) }),
        ...(latencies.length === 0 ? {} : { latencyMs: quantiles(latencies) }),
        heaviest: heaviestOf(statements[i], statements[i + 1]),
      }))
    },
  }
}

/** The statement that took the server longest between two readings, and how long one call of it took. */
function heaviestOf(before, after) {
  const earlier = new Map(before.map((one) => [one.id, one]))
  const [heaviest] = after
    .map(({ id, calls, ms, statement }) => ({
      statement,
      calls: calls - (earlier.get(id)?.calls ?? 0),
      ms: ms - (earlier.get(id)?.ms ?? 0),
    }))
    .filter(({ calls }) => calls > 0)
    .sort((a, b) => b.ms - a.ms)
  return heaviest && { ...heaviest, meanMs: heaviest.ms / heaviest.calls }
}

export function quantiles(values) {
  const sorted = values.toSorted((a, b) => a - b)
  const at = (share) => sorted[Math.max(0, Math.ceil(sorted.length * share) - 1)]
  return {
    count: sorted.length,
    mean: sorted.reduce((sum, value) => sum + value, 0) / sorted.length,
    p50: at(0.5),
    p99: at(0.99),
    max: sorted.at(-1),
  }
}
