// Processor time of the PostgreSQL server, from /proc. On systems without it there is none to tell.
import { readdirSync, readFileSync } from 'node:fs'

/** Linux counts in hundredths of a second, whatever its kernel was built with. */
const TICK_MS = 10

/** Milliseconds of the postmaster, of all its processes, and of those of its processes that have ended. */
export function cpuOfServer(pid) {
  for (;;) {
    const postmaster = statOf(pid)
    if (postmaster === undefined) return undefined
    let ticks = postmaster.own + postmaster.ended
    for (const name of readdirSync('/proc')) {
      if (!/^\d+$/.test(name)) continue
      const stat = statOf(name)
      if (stat?.parent === pid) ticks += stat.own
    }
    // A process that ended meanwhile was counted twice or not at all.
    if (statOf(pid)?.ended === postmaster.ended) return ticks * TICK_MS
  }
}

function statOf(pid) {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8')
    // The name, in brackets, may hold anything; what follows it is numbers.
    const fields = text
      .slice(text.lastIndexOf(')') + 2)
      .split(' ')
      .map(Number)
    const [, parent, , , , , , , , , , user, system, endedUser, endedSystem] = fields
    return { parent, own: user + system, ended: endedUser + endedSystem }
  } catch {
    return undefined
  }
}
