// What a process costs that has nothing to do: one process with all four applications.
import { setTimeout as delay } from 'node:timers/promises'
import { withClient } from '../client.mjs'
import { readStatements, resetStatements } from '../counters.mjs'
import { cpuOfServer } from '../cpu.mjs'
import { withOutbox } from '../outbox-database.mjs'
import { boundCheck, measureInTurns, seriesOf } from '../rounds.mjs'
import { startProcess } from '../called-process.mjs'

const SIDE = { name: 'leasehold' }
const METRICS = [
  { figure: 'statementsPerSecond', metric: 'statements per second', unit: '/s', better: 'lower' },
  { figure: 'nodePercent', metric: 'processor time of the process', unit: '% of a core', better: 'lower' },
  { figure: 'serverPercent', metric: 'processor time of the server', unit: '% of a core', better: 'lower' },
  { figure: 'connections', metric: 'connections', unit: '', better: 'lower' },
]

export const scenario = {
  name: 'idle',
  title: 'An idle process with all four applications',

  async run({ server, build, sized, rounds, print, signal, timeoutMs }) {
    // Longer than the connections of the start stay open, and than the longest interval of an idle worker.
    const [settleMs, windowMs] = sized({
      quick: [2_000, 5_000],
      short: [30_000, 20_000],
      full: [40_000, 60_000],
    })
    const remarks = [
      `One process runs the relay, the dispatcher, both workers of sync and a reconciler, with default settings and empty tables. Counted for ${windowMs / 1_000} s, from ${settleMs / 1_000} s after the start. Processor time of the server includes its background processes.`,
    ]
    const readings = await measureInTurns(
      { sides: [SIDE], rounds, print, signal, remarks, title: 'idle' },
      async () => measure({ server, build, settleMs, windowMs, signal, timeoutMs }),
    )
    return {
      series: seriesOf(readings, METRICS, 'all four applications'),
      checks: boundCheck(
        'idle',
        readings.get(SIDE)?.map(({ statementsPerSecond }) => statementsPerSecond),
      ),
      remarks,
    }
  },
}

async function measure({ server, build, settleMs, windowMs, signal, timeoutMs }) {
  return withOutbox({ server, build, timeoutMs }, async ({ url }) => {
    const applications = startProcess('applications.mjs', { label: 'the idle process', timeoutMs })
    try {
      await applications.call('load', build)
      await applications.call('start', { url })
      await delay(settleMs, undefined, { signal })
      await withClient(url, resetStatements)
      const read = async () => ({
        at: performance.now(),
        nodeMs: await applications.call('cpu'),
        serverMs: cpuOfServer(server.pid),
      })
      const before = await read()
      await delay(windowMs, undefined, { signal })
      const after = await read()
      const statements = await withClient(url, readStatements)
      const connections = await withClient(url, async (client) => client.query(CONNECTIONS))
      const ms = after.at - before.at
      const calls = statements.reduce((sum, one) => sum + one.calls, 0)
      await applications.call('stop')
      return {
        statementsPerSecond: (calls / ms) * 1_000,
        nodePercent: ((after.nodeMs - before.nodeMs) / ms) * 100,
        serverPercent: ((after.serverMs - before.serverMs) / ms) * 100,
        connections: connections.rows[0].count,
      }
    } finally {
      await applications.kill()
    }
  })
}

const CONNECTIONS = `select count(*)::int as count from pg_stat_activity
  where datname = current_database() and pid <> pg_backend_pid()`
