// When the clock starts and stops: the same for every side.
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
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
    /** The first row was handled: what came before is the start of the runtime. */
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

/**
 * Counts handled rows. `settled` resolves once all have been handled and the server, asked every few milliseconds from
 * then on, no longer has one that is not settled. So nobody's own idea of being done is trusted.
 */
export async function readyToCount(clock, rows, { url, unsettled }) {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  let count = 0
  let allHandled
  const handledAll = new Promise((resolve) => {
    allHandled = resolve
  })
  return {
    handled() {
      if (count === 0) clock.firstHandled()
      count += 1
      if (count === rows) allHandled()
    },
    settled: (async () => {
      await handledAll
      while ((await client.query(unsettled)).rows[0].unsettled) await delay(POLL_MS)
      await client.end()
      if (count !== rows) throw new Error(`${count} rows were handled instead of ${rows}`)
    })(),
  }
}
