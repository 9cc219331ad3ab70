// A session holds a snapshot from before the first event, so that nothing can be vacuumed: does the drain slow down?
import { withOutbox } from '../outbox-database.mjs'
import { measureInTurns, ratioCheck } from '../rounds.mjs'

const VARIANTS = [
  { title: 'no key', keys: 'none', goal: 'held' },
  { title: '10,000 keys', keys: 'many', goal: 'held-keyed' },
  { title: 'one hot key', keys: 'hot', goal: 'held-hot' },
]
const PORTIONS = 10
const STEPS = 1_000
/** A drain whose cost grows with every event would never end. */
const LONGEST_MS = { quick: 2_500, short: 20_000, full: 300_000 }

export const scenario = {
  name: 'held-snapshot',
  title: 'Held snapshot: the last tenth against the first tenth',

  async run({ server, build, sized, rounds, print, signal, timeoutMs }) {
    const events = sized({ quick: 3_000, short: 150_000, full: 1_000_000 })
    const maxMs = Math.min(sized(LONGEST_MS), timeoutMs * 0.9)
    const remarks = [
      `${events} events are written one by one and then drained, while another session holds a snapshot that is older than the first of them. The clock starts with the first event that is handled, so that the start of the process does not make the first tenth slower.`,
    ]
    const readings = await measureInTurns(
      {
        sides: VARIANTS,
        rounds,
        print,
        signal,
        remarks,
        title: 'held-snapshot',
        nameOf: ({ title }) => title,
      },
      async ({ keys }) => measure({ server, build, keys, events, maxMs, timeoutMs }),
    )
    for (const [{ title }, own] of readings) {
      const least = Math.min(...own.map(({ handled }) => handled))
      if (least < events)
        remarks.push(
          `${title}: the drain was ended after ${maxMs / 1_000} s, when ${least} of ${events} events had been handled. The tenths are those of the events that were handled.`,
        )
    }
    return {
      series: [...readings].flatMap(([{ title }, own]) =>
        ['first', 'last'].map((which) => ({
          side: 'leasehold',
          variant: `${title}, ${which} tenth`,
          metric: 'events per second',
          unit: '/s',
          better: 'higher',
          values: own.map((reading) => reading[which]),
          details: {
            line: title,
            handled: own.map(({ handled }) => handled),
            portions: own.map(({ portions }) => portions),
            claimMs: own.map(({ claimMs }) => claimMs),
          },
        })),
      ),
      checks: VARIANTS.flatMap((variant) => checksOf(variant, readings.get(variant), events)),
      remarks,
    }
  },
}

/** With a limit, a drain that did not reach its end fails: what was not reached would have been slower still. */
function checksOf({ goal, keys }, own, events) {
  if (own === undefined) return []
  const isEnough = ({ handled }) => keys === 'hot' || handled === events
  return ratioCheck(goal, [
    {
      of: own.map((reading) => (isEnough(reading) ? reading.last : 0)),
      to: own.map(({ first }) => first),
      against: 'leasehold, first tenth',
    },
  ])
}

async function measure({ server, build, keys, events, maxMs, timeoutMs }) {
  const scenario = { keys, written: 'one by one' }
  return withOutbox({ server, build, scenario, events, timeoutMs }, async ({ url, part, startRelay }) => {
    await server.checkpoint()
    const snapshot = await server.holdSnapshot(url)
    try {
      await part('write')
      await server.vacuum(url)
      const relay = await startRelay()
      const step = events / STEPS
      const { handled, ms, claimMs } = await relay.call('steps', 'relay', { url, events, step, maxMs })
      const portions = portionRates(ms, step)
      return { first: portions[0], last: portions.at(-1), handled, portions, claimMs }
    } finally {
      await snapshot.release()
    }
  })
}

/** Events per second in each tenth of the steps that were reached. */
function portionRates(ms, step) {
  const steps = ms.length - 1
  if (steps < PORTIONS) throw new Error(`too slow to be compared: ${steps * step} events were handled`)
  return Array.from({ length: PORTIONS }, (_, i) => {
    const [from, to] = [i, i + 1].map((n) => Math.round((n * steps) / PORTIONS))
    return (((to - from) * step) / (ms[to] - ms[from])) * 1_000
  })
}
