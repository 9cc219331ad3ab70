// A worker process is killed while its handlers run: how long until the rows run in another process, with default settings.
import { setTimeout as delay } from 'node:timers/promises'
import { TYPES } from '../event-types.mjs'
import { insertEvents, withOutbox } from '../outbox-database.mjs'
import { boundCheck, measureInTurns, seriesOf } from '../rounds.mjs'

const SIDE = { name: 'leasehold' }
const ROWS = 10
/** The kill comes at any moment of the intervals of reaper and registry. */
const MAX_PAUSE_MS = 1_000

const METRICS = [
  {
    figure: 'worstSeconds',
    metric: 'seconds from the kill to the last start elsewhere',
    unit: 's',
    better: 'lower',
  },
]

export const scenario = {
  name: 'crash',
  title: 'Crash: SIGKILL of a worker process until its rows run elsewhere',

  async run({ server, build, sized, rounds, print, signal, timeoutMs }) {
    const kills = sized({ quick: 1, short: 3, full: 5 })
    const remarks = [
      `${ROWS} rows run in the process that is killed, and another process is idle. The time is that from the kill to the start of the last of their handlers in the other process, the worst of each round (kills: ${kills}).`,
      'All settings are the defaults (lease 30 s). The server and both processes are on one machine, so that the end of the session of the killed process is visible at once; after the loss of a machine or a network, rows wait until their leases expire.',
      'Not measured here, from their documentation: graphile-worker releases the jobs of a killed process after 4 hours, pg-boss after the expiration of the job (15 minutes unless set otherwise).',
    ]
    const readings = await measureInTurns(
      { sides: [SIDE], rounds, print, signal, remarks, title: 'crash' },
      async () => {
        const seconds = []
        for (let i = 0; i < kills; i += 1) {
          signal?.throwIfAborted()
          seconds.push(await killOnce({ server, build, timeoutMs }))
        }
        return {
          worstSeconds: Math.max(...seconds.map(({ last }) => last)),
          firstSeconds: Math.max(...seconds.map(({ first }) => first)),
        }
      },
    )
    return {
      series: seriesOf(readings, METRICS, `${ROWS} rows in flight`),
      checks: boundCheck(
        'crash',
        readings.get(SIDE)?.map(({ worstSeconds }) => worstSeconds),
      ),
      remarks,
    }
  },
}

/** Seconds from the kill to the first and to the last start of a handler elsewhere. */
async function killOnce({ server, build, timeoutMs }) {
  return withOutbox({ server, build, timeoutMs }, async ({ url, startRelay }) => {
    await insertEvents(url, { type: TYPES.waiting, count: ROWS })
    const victim = await startRelay('the process that is killed')
    await victim.call('start', 'relay', { url })
    await victim.call('untilWaiting', 'relay', ROWS)
    const heir = await startRelay('the other process')
    const starts = []
    heir.onReport(({ at }) => starts.push(at))
    await heir.call('start', 'relay', { url, tellsStarts: true })
    await delay(Math.random() * MAX_PAUSE_MS)
    if (starts.length > 0) throw new Error('rows started in the other process before the kill')
    const killedAt = performance.timeOrigin + performance.now()
    await victim.kill()
    await heir.call('untilWaiting', 'relay', ROWS)
    // The reports were sent before the answer, on the same channel.
    const seconds = starts.map((at) => (at - killedAt) / 1_000).sort((a, b) => a - b)
    return { first: seconds[0], last: seconds.at(-1) }
  })
}
