// How many webhooks a second the dispatcher delivers, beside a bare loop of signed requests; and what renewal costs.
import { existsSync } from 'node:fs'
import { writeFile } from 'node:fs/promises'
import { cpus } from 'node:os'
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { parseArgs } from 'node:util'
import { measureWebhooks, startReceiver, webhookSides } from './measure-webhooks.mjs'
import { median } from './report.mjs'
import { startServer } from './server.mjs'
import { killAll } from './side-process.mjs'

const USAGE = `npm run webhooks -- [flags]

  --rows n          deliveries of one drain (20000)
  --rounds n        how often each side runs, in turn (5)
  --concurrency n   concurrent requests (64)
  --endpoints n     endpoints that share them (4)
  --delay ms        how long the receiver takes to answer (0)
  --dist dir        the build of leasehold that is measured (../dist)
  --json file       write everything that was measured there
`

/** Renewal cannot be switched off; with the default lease of two minutes no heartbeat falls into a drain. */
const RENEWAL = {
  'renewal every 36 s (lease 120 s, the default)': {},
  'renewal every 3 s (lease 10 s)': { leaseMs: 10_000 },
  'renewal every 0.3 s (lease 1 s)': { leaseMs: 1_000 },
}

const TIMEOUT_MS = 300_000

const print = (text) => process.stdout.write(`${text}\n`)

function readFlags() {
  const { values } = parseArgs({
    options: {
      rows: { type: 'string', default: '20000' },
      rounds: { type: 'string', default: '5' },
      concurrency: { type: 'string', default: '64' },
      endpoints: { type: 'string', default: '4' },
      delay: { type: 'string', default: '0' },
      dist: { type: 'string', default: resolve(import.meta.dirname, '../dist') },
      json: { type: 'string' },
      help: { type: 'boolean', default: false },
    },
  })
  const numbers = ['rows', 'rounds', 'concurrency', 'endpoints', 'delay'].map((name) => {
    const value = Number(values[name])
    if (!Number.isInteger(value) || value < (name === 'delay' ? 0 : 1))
      throw new Error(`--${name} ${values[name]}: give a whole number from ${name === 'delay' ? 0 : 1}`)
    return [name, value]
  })
  const flags = { ...values, ...Object.fromEntries(numbers) }
  if (flags.rows % flags.endpoints !== 0 || flags.concurrency % flags.endpoints !== 0)
    throw new Error('--rows and --concurrency: give multiples of --endpoints')
  if (!existsSync(resolve(flags.dist, 'webhooks/index.js')))
    throw new Error(
      `there is no build of leasehold in ${flags.dist}: run \`npm run build\` in the root first`,
    )
  return { ...flags, dist: pathToFileURL(`${resolve(flags.dist)}/`) }
}

async function main() {
  const flags = readFlags()
  if (flags.help) {
    print(USAGE)
    return
  }
  const stopping = new AbortController()
  const stop = () => {
    stopping.abort()
    killAll()
  }
  process.once('SIGINT', stop).once('SIGTERM', stop)
  const receiver = await startReceiver(flags.delay)
  const { startEmbedded } = await import(new URL('embedded/index.js', flags.dist).href)
  const server = await startServer(startEmbedded)
  const { rows, rounds, concurrency, endpoints } = flags
  print(
    `PostgreSQL ${server.facts.version}, fsync ${server.facts.fsync}; Node ${process.versions.node}; ${cpus().length} cores; ${rows} deliveries, ${concurrency} at once to ${endpoints} endpoints that answer after ${flags.delay} ms, ${rounds} rounds`,
  )
  const sides = webhookSides(
    { dist: flags.dist.href, receiver: receiver.url, endpoints, concurrency },
    Object.entries(RENEWAL).map(([label, settings]) => ({ label: `dispatcher, ${label}`, settings })),
  )
  const readings = sides.map(() => [])
  try {
    for (let round = 1; round <= rounds && !stopping.signal.aborted; round += 1) {
      // Every other round in the opposite order, so that no side is always first.
      const order = round % 2 === 1 ? sides.keys() : [...sides.keys()].toReversed()
      for (const i of order) {
        const reading = await measureWebhooks(server, sides[i], { rows, timeoutMs: TIMEOUT_MS })
        readings[i].push(reading)
        print(
          `round ${round}: ${sides[i].label}: ${Math.round((rows / reading.ms) * 1_000)}/s${reading.renewals === undefined ? '' : `, ${reading.renewals} renewals`}`,
        )
      }
    }
  } finally {
    killAll()
    receiver.stop()
    await server.stop()
  }
  const summaries = sides.map(({ label }, i) => summarise(label, readings, i))
  print('')
  for (const one of summaries) print(format(one))
  if (flags.json !== undefined) await writeFile(flags.json, `${JSON.stringify(summaries, undefined, 2)}\n`)
}

const [BARE, USUAL] = [0, 1]
const rate = ({ events, ms }) => (events / ms) * 1_000

/** Ratios within each round: neighbours in time share the state of the machine. */
function summarise(label, readings, i) {
  const own = readings[i]
  const ratioTo = (other) => median(own.map((reading, round) => rate(reading) / rate(readings[other][round])))
  const cpu = (reading) => ((reading.nodeCpuMs + (reading.serverCpuMs ?? 0)) * 1_000) / reading.events
  const cpuTo = (other) => median(own.map((reading, round) => cpu(reading) / cpu(readings[other][round])))
  return {
    label,
    rates: own.map(rate),
    median: median(own.map(rate)),
    renewals: own[0]?.renewals,
    cpuMicroseconds: median(own.map(cpu)),
    ...(i > BARE ? { ofBare: ratioTo(BARE) } : {}),
    ...(i > USUAL ? { ofUsual: ratioTo(USUAL), cpuOfUsual: cpuTo(USUAL) } : {}),
    readings: own,
  }
}

function format({ label, median: middle, rates, cpuMicroseconds, ofBare, ofUsual, cpuOfUsual }) {
  const each = rates.map((one) => Math.round(one)).join('  ')
  return [
    label.padEnd(62),
    `${Math.round(middle)}/s (${each})`,
    `${cpuMicroseconds.toFixed(0)} µs of CPU each, Node and server`,
    ...(ofBare === undefined ? [] : [`${ofBare.toFixed(2)} of the bare loop`]),
    ...(ofUsual === undefined ? [] : [`${ofUsual.toFixed(3)} of the default; CPU ${cpuOfUsual.toFixed(3)}`]),
  ].join('   ')
}

await main().catch((error) => {
  process.stderr.write(`${error.message}\n`)
  process.exitCode = 1
})
