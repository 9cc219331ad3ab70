// Worker processes × buckets: how quickly they drain events without keys and with keys, and what they send when nothing is
// to do. And webhooks with one bucket and with several.
import { setTimeout as delay } from 'node:timers/promises'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { withClient } from '../client.mjs'
import { readStatements, resetStatements } from '../counters.mjs'
import { measureWebhooks, startReceiver, webhookSides } from '../measure-webhooks.mjs'
import { startRelayProcess, untilAllSettled, verifyPublished, withOutbox } from '../outbox-database.mjs'
import { table } from '../report/page.mjs'
import { measureInTurns, median, present, ratioCheck } from '../rounds.mjs'

const LIMIT = 0.85
const IDLE_LIMIT = 1.1
/** The number of buckets that the goals name. */
const MANY = 64

const METRICS = [
  { figure: 'unkeyedPerSecond', metric: 'events per second, no key', unit: '/s', better: 'higher' },
  { figure: 'keyedPerSecond', metric: 'events per second, 10,000 keys', unit: '/s', better: 'higher' },
  { figure: 'idlePerSecond', metric: 'statements per second while idle', unit: '/s', better: 'lower' },
]

const ENDPOINTS = 4
const CONCURRENCY = 64
/** How long the receiver takes to answer, and the share of the deliveries that are sent to it. */
const RECEIVERS = [
  { delayMs: 0, variant: 'a receiver that answers at once', share: 1 },
  { delayMs: 50, variant: 'a receiver that takes 50 ms', share: 0.5 },
]

export const scenario = {
  name: 'buckets',
  title: 'Buckets and processes',
  reach: `with ${MANY} buckets ≥ ${LIMIT} of the speed with one: outbox without and with keys, and webhooks; idle processes send no more statements`,

  async run(context) {
    const { sized } = context
    const sizes = {
      processes: sized({ quick: [2], short: [1, 2, 4, 8], full: [1, 2, 4, 8] }),
      buckets: sized({ quick: [1, MANY], short: [1, 16, MANY, 256], full: [1, 16, MANY, 256] }),
      events: sized({ quick: 1_000, short: 20_000, full: 60_000 }),
      // An idle relay that listens polls every 5 s.
      idleMs: sized({ quick: [1_000, 2_000], short: [6_000, 10_000], full: [20_000, 30_000] }),
      deliveries: sized({ quick: 1_000, short: 16_000, full: 40_000 }),
      receivers: sized({ quick: RECEIVERS.slice(0, 1), short: RECEIVERS, full: RECEIVERS }),
    }
    const remarks = remarksOf(sizes)
    const outbox = await measureOutbox(context, sizes, remarks)
    const webhooks = await measureDispatchers(context, sizes, remarks)
    return {
      series: [...outbox.series, ...webhooks.series],
      checks: [...outbox.checks, ...webhooks.checks],
      remarks,
    }
  },
}

function remarksOf({ events, idleMs: [settleMs, windowMs], deliveries, receivers }) {
  return [
    `Outbox: ${events} events of 200 bytes, written one by one, without keys; the same processes then drain as many of 10,000 keys. All processes run before the clock starts. Nothing is to do afterwards: from ${settleMs / 1_000} s after the last event, all statements of the database are counted for ${windowMs / 1_000} s.`,
    `Webhooks: one process, ${CONCURRENCY} requests at a time to ${ENDPOINTS} endpoints: ${receivers.map(({ variant, share }) => `${deliveries * share} deliveries to ${variant}`).join(', ')}.`,
    'The tables of sync, and those of users that declare no bucket (reconcile), have no buckets: their statements are the same.',
    'The machine has as many cores as the record says: more processes than cores cannot help here.',
  ]
}

const processesText = (count) => (count === 1 ? '1 process' : `${count} processes`)
const bucketsText = (count) => (count === 1 ? '1 bucket' : `${count} buckets`)

async function measureOutbox(context, sizes, remarks) {
  const { rounds, print, signal } = context
  // Neighbours in time are compared with each other.
  const sides = sizes.processes.flatMap((processes) =>
    sizes.buckets.map((buckets) => ({ processes, buckets })),
  )
  const nameOf = ({ processes, buckets }) => `${processesText(processes)}, ${bucketsText(buckets)}`
  const readings = await measureInTurns(
    { sides, rounds, print, signal, remarks, title: 'buckets', nameOf },
    async (side) => measureSide(context, sizes, side),
  )
  const valuesOf = (processes, buckets, figure) => {
    const side = sides.find((one) => one.processes === processes && one.buckets === buckets)
    return readings.get(side)?.map((reading) => reading[figure])
  }
  /** What idle processes sent in the first round, by the number of buckets. */
  const statementsOf = (processes) =>
    Object.fromEntries(
      sizes.buckets.map((x) => [bucketsText(x), valuesOf(processes, x, 'idleStatements')?.[0]]),
    )
  const measuredProcesses = sizes.processes.filter((count) =>
    [...readings.keys()].some(({ processes }) => processes === count),
  )
  print(gridOf(readings))
  return {
    series: METRICS.flatMap(({ figure, ...metric }) =>
      measuredProcesses.map((processes) => ({
        side: 'leasehold',
        variant: processesText(processes),
        ...metric,
        xLabel: 'buckets',
        points: sizes.buckets
          .map((x) => ({ x, values: valuesOf(processes, x, figure) }))
          .filter(({ values }) => values !== undefined),
        ...(figure === 'idlePerSecond' ? { details: statementsOf(processes) } : {}),
      })),
    ),
    checks: present(
      METRICS.flatMap(({ figure, metric, better }) => {
        const [least, most] = [sizes.processes[0], sizes.processes.at(-1)]
        // One idle process sends too few statements for a ratio.
        const judged = figure === 'idlePerSecond' ? [most] : [...new Set([least, most])]
        const limit = better === 'higher' ? LIMIT : IDLE_LIMIT
        return judged.map((processes) =>
          ratioCheck({
            text: `${metric}, ${processesText(processes)}: ${bucketsText(MANY)} ${better === 'higher' ? '≥' : '≤'} ${limit} of one`,
            of: valuesOf(processes, MANY, figure),
            to: valuesOf(processes, 1, figure),
            comparison: better === 'higher' ? '>=' : '<=',
            limit,
            against: 'leasehold, 1 bucket',
          }),
        )
      }),
    ),
  }
}

/** All figures in one table, the medians of the rounds. */
function gridOf(readings) {
  const rows = [...readings].map(([{ processes, buckets }, own]) => [
    processes,
    buckets,
    ...METRICS.map(({ figure }) => {
      const value = median(own.map((reading) => reading[figure]))
      return figure === 'idlePerSecond' ? value.toFixed(1) : Math.round(value)
    }),
  ])
  return `\n${table(['processes', 'buckets', ...METRICS.map(({ metric }) => metric)], rows)}\n`
}

async function measureSide({ server, build, signal, timeoutMs }, { events, idleMs }, { processes, buckets }) {
  const relays = []
  try {
    for (let i = 1; i <= processes; i += 1)
      relays.push(await startRelayProcess({ build, label: `relay ${i}`, timeoutMs }))
    const drain = async (name, keys, afterwards) => {
      const written = { keys, written: 'one by one' }
      return withOutbox(
        { server, build, buckets, scenario: written, events, timeoutMs },
        async ({ url, part }) => {
          await part('write')
          await server.vacuum(url)
          const all = async (work) => Promise.all(relays.map(work))
          await all(async (relay) => relay.call('start', name, { url, settings: { paused: true } }))
          const began = performance.now()
          await untilAllSettled(relays, events, timeoutMs, async () => {
            await all(async (relay) => relay.call('resume', name))
          })
          const ms = performance.now() - began
          const more = await afterwards(url)
          await all(async (relay) => relay.call('stop', name))
          await verifyPublished(url, events)
          return { perSecond: (events / ms) * 1_000, ...more }
        },
      )
    }
    const unkeyed = await drain('unkeyed', 'none', async () => ({}))
    const keyed = await drain('keyed', 'many', async (url) => countIdle(url, idleMs, signal))
    return {
      unkeyedPerSecond: unkeyed.perSecond,
      keyedPerSecond: keyed.perSecond,
      idlePerSecond: keyed.idlePerSecond,
      idleStatements: keyed.idleStatements,
    }
  } finally {
    await Promise.all(relays.map(async (relay) => relay.kill()))
  }
}

/** How many statements all processes together send when nothing is to do. */
async function countIdle(url, [settleMs, windowMs], signal) {
  await delay(settleMs, undefined, { signal })
  await withClient(url, resetStatements)
  const began = performance.now()
  await delay(windowMs, undefined, { signal })
  const statements = await withClient(url, readStatements)
  const calls = statements.reduce((sum, one) => sum + one.calls, 0)
  return {
    idlePerSecond: (calls / (performance.now() - began)) * 1_000,
    idleStatements: statements.map((one) => ({ calls: one.calls, statement: one.statement })),
  }
}

async function measureDispatchers({ server, build, rounds, print, signal, timeoutMs }, sizes, remarks) {
  const started = []
  try {
    const sides = []
    for (const { delayMs, variant, share } of sizes.receivers) {
      const receiver = await startReceiver(delayMs)
      started.push(receiver)
      const dist = pathToFileURL(`${join(build, 'dist')}/`).href
      const [, ...dispatchers] = webhookSides(
        { dist, receiver: receiver.url, endpoints: ENDPOINTS, concurrency: CONCURRENCY },
        [1, MANY].map((buckets) => ({ label: bucketsText(buckets), buckets })),
      )
      sides.push(...dispatchers.map((side) => ({ ...side, variant, rows: sizes.deliveries * share })))
    }
    const readings = await measureInTurns(
      {
        sides,
        rounds,
        print,
        signal,
        remarks,
        title: 'webhooks',
        nameOf: ({ label, variant }) => `${label}, ${variant}`,
      },
      async (side) => {
        const { ms } = await measureWebhooks(server, side, { rows: side.rows, timeoutMs })
        return { perSecond: (side.rows / ms) * 1_000 }
      },
    )
    const valuesOf = (side) => readings.get(side)?.map(({ perSecond }) => perSecond)
    const find = (variant, buckets) =>
      sides.find((side) => side.variant === variant && side.options.buckets === buckets)
    return {
      series: [...readings.keys()].map((side) => ({
        side: `leasehold, ${side.label}`,
        variant: side.variant,
        metric: 'deliveries per second',
        unit: '/s',
        better: 'higher',
        values: valuesOf(side),
      })),
      checks: present(
        sizes.receivers.map(({ variant }) =>
          ratioCheck({
            text: `webhooks, ${variant}: ${bucketsText(MANY)} ≥ ${LIMIT} of one`,
            of: valuesOf(find(variant, MANY)),
            to: valuesOf(find(variant, 1)),
            comparison: '>=',
            limit: LIMIT,
            against: 'leasehold, 1 bucket',
          }),
        ),
      ),
    }
  } finally {
    for (const receiver of started) receiver.stop()
  }
}
