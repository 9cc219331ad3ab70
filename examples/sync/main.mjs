// Syncs a matrix of a (local) office of statistics into a table, and shows how far it is.
//
//   npm run example sync               kill it as you like, and start it again: it goes on
//   npm run example sync -- --force    once more, although everything is there
//
// On the database in DATABASE_URL, or on an embedded one in .leasehold/sync-example.
// CALLS_PER_SECOND says how often the office may be called (default 10).
import { setTimeout as delay } from 'node:timers/promises'
import { migrate, openDatabase, startRuntime } from 'leasehold'
import { startEmbedded } from 'leasehold/embedded'
import { populationSync, TABLE } from './population.mjs'
import { progressBar, progressOf } from './progress-bar.mjs'
import { openOffice } from './statistics-office.mjs'

const { DATABASE_URL, CALLS_PER_SECOND = '10' } = process.env
const say = (text) => process.stdout.write(`${text}\n`)
const stop = new AbortController()
for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => stop.abort())

const server = DATABASE_URL ? undefined : await startEmbedded({ directory: '.leasehold/sync-example' })
const databaseUrl = DATABASE_URL || server.url
const db = openDatabase({ url: databaseUrl })
const office = await openOffice()
try {
  await migrate(db)
  await db.query({ text: TABLE })
  const perSecond = Number(CALLS_PER_SECOND)
  const { sync, population } = populationSync({ db, officeUrl: office.url, perSecond })

  // One job for a matrix at a time: where one is not finished yet, this is it.
  const force = process.argv.includes('--force')
  const { jobId, created } = await population.enqueue(db, { matrixId: 'POP105A', force })
  const before = await progressOf(db, jobId)
  say(created ? `Job ${jobId} begins.` : `Job ${jobId} goes on: ${before.done} chunks were done before.`)
  say(`To kill it: kill -9 ${process.pid}`)

  const runtime = await startRuntime({ databaseUrl, workers: sync.runner({ checkEveryMs: 250 }) })
  const end = await watch(jobId, before.done)
  await runtime.stop()
  await tell(end)
} finally {
  await office.close()
  await db.close()
  await server?.stop()
}

/** Until the job has ended, or somebody wants this to end. */
async function watch(jobId, doneBefore) {
  const bar = progressBar(process.stdout, doneBefore)
  for (;;) {
    const progress = await progressOf(db, jobId)
    bar.draw(progress)
    if (progress.state === 'COMPLETED' || progress.state === 'FAILED' || stop.signal.aborted) {
      bar.end()
      return progress
    }
    await delay(100, undefined, { signal: stop.signal }).catch(() => undefined)
  }
}

async function tell({ state, error, done, total }) {
  if (state === 'FAILED') {
    process.exitCode = 1
    return say(`The job has failed: ${error}`)
  }
  if (state !== 'COMPLETED')
    return say(`Stopped at ${done} of ${total} chunks. Start it again, and it goes on.`)
  const { rows } = await db.query({
    text: 'select count(*)::int as rows, sum(people)::int as people from statistics.population',
  })
  const { people } = await (await fetch(`${office.url}/matrices/POP105A/total`)).json()
  say(
    `Done: ${Number(rows[0].rows)} rows; ${Number(rows[0].people)} people in the table, ${people} at the office.`,
  )
  say(`The office was asked for ${office.requests} chunks by this process.`)
  if (rows[0].people !== people) process.exitCode = 1
  return undefined
}
