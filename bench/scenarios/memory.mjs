// How much memory a relay needs for a large backlog, in a process that sets no flags of Node.
import { readFile } from 'node:fs/promises'
import { insertBacklog, verifyPublished, withOutbox } from '../outbox-database.mjs'
import { boundCheck, measureInTurns, seriesOf } from '../rounds.mjs'

const SIDES = [
  { name: 'leasehold', variant: '0.2 KB', payloadBytes: 200 },
  { name: 'leasehold', variant: '1 KB', payloadBytes: 1_000 },
]

const METRICS = [{ figure: 'memoryMB', metric: 'largest resident memory', unit: 'MB', better: 'lower' }]

export const scenario = {
  name: 'memory',
  title: 'Memory with a large backlog',

  async run({ server, build, quick, sized, rounds, print, signal, timeoutMs }) {
    if (process.platform !== 'linux')
      throw new Error('the largest resident memory of a process is read from /proc, which only Linux has')
    // With fewer, the heap does not reach its size.
    const events = sized({ quick: 100_000, short: 500_000, full: 1_000_000 })
    const remarks = [
      `The largest resident memory (VmHWM) of the process that drains ${events} events without keys, with the thread of its heartbeat. Handlers return at once. 1 MB is 1,000,000 bytes.`,
      'The process is `node` without flags and runs a program that calls startRuntime with a relay.',
    ]
    const sides = quick ? SIDES.slice(0, 1) : SIDES
    const nameOf = ({ variant }) => variant
    const readings = await measureInTurns(
      { sides, rounds, print, signal, remarks, title: 'memory', nameOf },
      async ({ payloadBytes }) =>
        withOutbox({ server, build, timeoutMs }, async ({ url, startRelay }) => {
          await insertBacklog(url, { count: events, payloadBytes })
          await server.vacuum(url)
          const relay = await startRelay()
          await relay.call('drain', 'relay', { url, events })
          const memoryMB = await largestMemory(relay.pid)
          await relay.call('stop', 'relay')
          await verifyPublished(url, events)
          return { memoryMB }
        }),
    )
    return {
      series: seriesOf(readings, METRICS),
      checks: boundCheck(
        'memory',
        [...readings.values()].flat().map(({ memoryMB }) => memoryMB),
      ),
      remarks,
    }
  },
}

/** Megabytes that were resident at most, since the process began its program. */
async function largestMemory(pid) {
  const status = await readFile(`/proc/${pid}/status`, 'utf8')
  return (Number(/^VmHWM:\s+(\d+) kB$/m.exec(status)[1]) * 1_024) / 1e6
}
