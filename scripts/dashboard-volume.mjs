// Measures the dashboard with a million events: `npm run dashboard:volume`, or with the minutes and the number of events
// `npm run dashboard:volume -- 5 1000000`. It loads an embedded PostgreSQL, opens pages in Chromium and prints how long the
// first rows take. Then it leaves the outbox and the overview open while events are written, and prints the JavaScript
// heap, after a collection of garbage, every 30 s. The last line compares the last minute with the first.
import { getRequestListener } from '@hono/node-server'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { migrate, openDatabase } from 'leasehold'
import { startEmbedded } from 'leasehold/embedded'
import { createOutbox } from 'leasehold/outbox'
import { createDashboard } from 'leasehold/server'
import { launchChromium } from './chromium.mjs'

const [minutes = 5, events = 1_000_000] = process.argv.slice(2).map(Number)
const HEAP_EVERY_MS = 30_000
const WRITE_EVERY_MS = 100
const BATCH = 100_000
const PAGES = [
  ['outbox', '/outbox', 'tbody tr'],
  ['outbox, dead', '/outbox?status=DEAD', 'tbody tr'],
  ['outbox, by type', '/outbox?type=order.type7', 'tbody tr'],
  ['overview', '/', '.figure'],
]

const directory = await mkdtemp(join(tmpdir(), 'leasehold-volume-'))
const embedded = await startEmbedded({ directory, settings: { fsync: 'off' } })
const db = openDatabase({ url: embedded.url })
const dashboard = createDashboard({
  db: openDatabase({ url: embedded.url, maxConnections: 5 }),
  withoutKey: { principal: 'local', role: 'admin', tenant: null },
  requestsPerSecond: 1_000,
  burst: 1_000,
})
const listener = getRequestListener(async (request, env) => dashboard.fetch(request, env), {
  overrideGlobalObjects: false,
})
const server = createServer((request, response) => void listener(request, response))
try {
  await migrate(db)
  await fill()
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const url = `http://127.0.0.1:${server.address().port}`
  const browser = await launchChromium()
  try {
    await measureFirstRows(browser, url)
    if (minutes > 0) await measureHeap(browser, url)
  } finally {
    await browser.close()
  }
} finally {
  await dashboard.stop()
  server.closeAllConnections()
  server.close()
  await embedded.stop()
  await rm(directory, { recursive: true, force: true })
}
// The pool of the dashboard has nothing left to do.
process.exit()

/** One event in 200 is dead, one in 200 pending, all others are published; they were written over 30 days. */
async function fill() {
  const startedAt = performance.now()
  // No statement may take longer than the limit of the pool.
  for (let from = 1; from <= events; from += BATCH)
    await db.query({
      text: `insert into leasehold.outbox (event_type, ordering_key, payload, status, created_at, available_at, lock_token,
  published_at, dead_at, attempts, last_error)
select 'order.type' || n % 20, case when n % 2 = 0 then 'customer ' || n % 5000 end, jsonb_build_object('n', n),
  case when n % 200 = 0 then 'DEAD' when n % 200 = 1 then 'PENDING' else 'PUBLISHED' end,
  at, at, (n % 200 <> 1)::int,
  case when n % 200 > 1 then at + interval '1 s' end, case when n % 200 = 0 then at + interval '1 s' end,
  (n % 200 = 0)::int, case when n % 200 = 0 then 'connection refused' end
from (select n, now() - interval '30 days' * (1 - n / $3::float8) as at from generate_series($1::int, $2::int) as n) as event
order by n`,
      values: [from, Math.min(from + BATCH - 1, events), events],
    })
  await db.query({ text: 'vacuum analyze leasehold.outbox' })
  print(`${events} events were written in ${seconds(performance.now() - startedAt)}`)
}

async function measureFirstRows(browser, url) {
  for (const [name, path, row] of PAGES) {
    const times = []
    for (let visit = 0; visit < 3; visit += 1) {
      const context = await browser.newContext()
      const page = await context.newPage()
      const startedAt = performance.now()
      await page.goto(`${url}${path}`)
      await page.locator(row).first().waitFor()
      times.push(performance.now() - startedAt)
      await context.close()
    }
    print(`${name}: first rows after ${times.map((time) => seconds(time)).join(', ')}`)
  }
}

async function measureHeap(browser, url) {
  const outbox = createOutbox()
  let written = 0
  const stop = new AbortController()
  const writing = (async () => {
    while (!stop.signal.aborted) {
      await outbox.enqueue(db, [
        { type: 'order.live', payload: { written } },
        { type: 'order.live', payload: {} },
      ])
      written += 2
      await delay(WRITE_EVERY_MS)
    }
  })()
  const watched = []
  for (const [name, path] of [
    ['outbox', '/outbox'],
    ['overview', '/'],
  ]) {
    const page = await (await browser.newContext()).newPage()
    await page.goto(`${url}${path}`)
    await page.getByRole('button', { name: /^Live/ }).waitFor()
    watched.push({ name, page, tools: await page.context().newCDPSession(page), readings: [] })
  }
  const startedAt = performance.now()
  for (;;) {
    const elapsedMs = performance.now() - startedAt
    for (const { tools, readings } of watched) {
      await tools.send('HeapProfiler.collectGarbage')
      const { usedSize } = await tools.send('Runtime.getHeapUsage')
      readings.push({ elapsedMs, usedSize })
    }
    const sizes = watched.map(({ name, readings }) => `${name} ${megabytes(readings.at(-1).usedSize)}`)
    print(`${seconds(elapsedMs)}: ${sizes.join(', ')}, ${written} events written`)
    if (elapsedMs >= minutes * 60_000) break
    await delay(HEAP_EVERY_MS)
  }
  stop.abort()
  await writing
  for (const { name, readings } of watched) {
    const end = readings.at(-1).elapsedMs
    const first = mean(readings.filter(({ elapsedMs }) => elapsedMs <= 60_000))
    const last = mean(readings.filter(({ elapsedMs }) => elapsedMs >= end - 60_000))
    print(`${name}: the heap of the last minute is ${(last / first).toFixed(2)} times that of the first`)
  }
}

function mean(readings) {
  return readings.reduce((sum, { usedSize }) => sum + usedSize, 0) / readings.length
}

function megabytes(bytes) {
  return `${(bytes / 1_048_576).toFixed(2)} MB`
}

function seconds(ms) {
  return `${(ms / 1_000).toFixed(2)} s`
}

function print(line) {
  process.stdout.write(`${line}\n`)
}
