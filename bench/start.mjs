// Leasehold beside its peers: one server, one run, in turn.
import { existsSync } from 'node:fs'
import { mkdir, writeFile } from 'node:fs/promises'
import { cpus } from 'node:os'
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { readFlags, USAGE } from './flags.mjs'
import { lineUp } from './line-up.mjs'
import { selfTimes } from './profile.mjs'
import { summarise, table } from './report.mjs'
import { startServer } from './server.mjs'
import { killAll, runSide } from './side-process.mjs'
import { resetStatements, topStatements } from './statements.mjs'

const print = (text) => process.stdout.write(`${text}\n`)

async function main() {
  const given = readFlags(process.argv.slice(2))
  if (given.help) {
    print(USAGE)
    return
  }
  const flags = {
    ...given,
    dist: buildIn(given.dist ?? resolve(import.meta.dirname, '../dist')),
    ...(given.against === undefined ? {} : { against: buildIn(given.against) }),
  }
  const sides = lineUp(flags)
  if (flags.profile !== undefined) await mkdir(flags.profile, { recursive: true })

  // Before the server starts: whenever the run is ended, it stops the server and removes its directory.
  const stopping = new AbortController()
  const stop = () => {
    stopping.abort()
    killAll()
  }
  process.once('SIGINT', stop).once('SIGTERM', stop)
  const server = await startServer(flags.dist, { statements: flags.profile !== undefined })
  print(
    `PostgreSQL ${server.facts.version}, fsync ${server.facts.fsync}, synchronous_commit ${server.facts.synchronousCommit}; Node ${process.versions.node}; ${cpus().length} cores; ${flags.rows} rows, ${flags.rounds} rounds`,
  )
  const readings = new Map(sides.map(({ name }) => [name, []]))
  let failures = 0
  try {
    for (let round = 1; round <= flags.rounds && !stopping.signal.aborted; round += 1) {
      for (const side of sides) {
        if (stopping.signal.aborted) break
        const reading = await measure(server, side, flags).catch((error) => {
          failures += 1
          print(`round ${round}: ${error.message}`)
        })
        readings.get(side.name).push(reading)
        if (reading === undefined) continue
        print(`round ${round}: ${side.label}: ${Math.round((reading.rows / reading.ms) * 1_000)} rows/s`)
        if (reading.statements !== undefined) printStatements(reading.statements)
      }
    }
  } finally {
    killAll()
    await server.stop()
  }
  const lines = summarise(sides, readings)
  print(`\n${table(lines)}`)
  if (flags.profile !== undefined) await printSelfTimes(flags.profile)
  if (flags.json !== undefined) {
    const record = { at: new Date().toISOString(), node: process.versions.node, cores: cpus().length }
    await writeFile(
      flags.json,
      `${JSON.stringify({ ...record, server: server.facts, rows: flags.rows, lines }, undefined, 2)}\n`,
    )
  }
  if (failures > 0 || stopping.signal.aborted) process.exitCode = 1
}

/** One drain of one side, from an empty database to its last settlement; the number only if every row was done. */
async function measure(server, { name, system, label, options }, { rows, timeoutMs, profile }) {
  const database = `bench_${name}`
  await server.dropDatabase(database)
  const url = await server.createDatabase(database)
  try {
    const order = { label, side: { system, ...options }, url, rows, serverPid: server.pid }
    await runSide({ ...order, part: 'prepare' }, { timeoutMs })
    await server.settle(url)
    const profiled = profile !== undefined && system === 'leasehold'
    if (profile !== undefined) await resetStatements(url)
    const execArgv = profiled ? ['--cpu-prof', `--cpu-prof-dir=${resolve(profile)}`] : []
    const reading = await runSide({ ...order, part: 'drain' }, { timeoutMs, execArgv })
    return profile === undefined ? reading : { ...reading, statements: await topStatements(url) }
  } finally {
    await server.dropDatabase(database)
  }
}

function printStatements(statements) {
  for (const { ms, calls, rows, statement } of statements)
    print(
      `  ${String(ms).padStart(6)} ms  ${String(calls).padStart(6)} calls  ${String(rows).padStart(7)} rows  ${statement}`,
    )
}

const SHOWN = 40

async function printSelfTimes(directory) {
  const times = await selfTimes(directory)
  const all = times.reduce((sum, { ms }) => sum + ms, 0)
  print(`\nself time in the leasehold processes, ${directory}`)
  for (const { name, ms } of times.slice(0, SHOWN))
    print(
      `  ${Math.round(ms)} ms`.padEnd(12) + `${((ms / all) * 100).toFixed(1)} %`.padStart(7) + `  ${name}`,
    )
}

/** The directory of a build, as the base of imports. */
function buildIn(directory) {
  const path = resolve(directory)
  if (existsSync(resolve(path, 'outbox/index.js'))) return pathToFileURL(`${path}/`)
  throw new Error(
    `there is no build of leasehold in ${path}: run \`npm run build\` in the root of the repository first`,
  )
}

await main().catch((error) => {
  process.stderr.write(`${error.message}\n`)
  process.exitCode = 1
})
