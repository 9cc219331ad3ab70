// Takes pictures of every page of the dashboard for the documentation: `npm run screenshots`. It starts the demo on an
// embedded PostgreSQL, waits until there is something on every page, and writes docs/images/<page>-<theme>-<size>.png.
// Names after the script choose pages: `npm run screenshots -- outbox event`. It needs Chromium, and takes two minutes.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, mkdtemp, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { launchChromium } from './chromium.mjs'

const LEASEHOLD = fileURLToPath(new URL('../bin/leasehold.cjs', import.meta.url))
const IMAGES = fileURLToPath(new URL('../docs/images/', import.meta.url))
const SIZES = { desktop: { width: 1280, height: 800 }, phone: { width: 390, height: 844 } }
const THEMES = ['light', 'dark']
const WAIT_MS = 180_000

/** The name of each page, and its address; of a page for one row, where the API lists such rows. */
const PAGES = [
  ['overview', '/'],
  ['outbox', '/outbox'],
  ['dead', '/outbox?status=DEAD'],
  ['event', '/outbox/events/', '/outbox/events?status=DEAD&type=parcel.labelled'],
  ['held-up-keys', '/outbox/keys'],
  ['webhooks', '/webhooks'],
  ['endpoint', '/webhooks/endpoints/', '/webhooks/endpoints?tenant=globex'],
  ['deliveries', '/webhooks/deliveries'],
  ['delivery', '/webhooks/deliveries/', '/webhooks/deliveries?status=failed'],
  ['sync', '/sync'],
  ['job', '/sync/jobs/', '/sync/jobs'],
  ['reconcile', '/reconcile'],
  ['leases', '/leases'],
  ['workers', '/workers'],
  ['worker', '/workers/', '/workers'],
  ['changes', '/changes'],
  ['change', '/changes/', '/changes'],
  ['audit', '/audit'],
  ['keys', '/keys'],
  ['doctor', '/doctor'],
]

/** Lists that are empty at first. */
const AWAITED = [
  '/outbox/events?status=DEAD&type=parcel.labelled',
  '/outbox/keys',
  '/webhooks/deliveries?status=failed',
  '/sync/jobs',
  '/changes',
]

const chosen = process.argv.slice(2)
const directory = await mkdtemp(join(tmpdir(), 'leasehold-screenshots-'))
const startedAt = performance.now()
const { demo, url } = await startDemo()
try {
  await untilFilled(url)
  const browser = await launchChromium()
  try {
    await mkdir(IMAGES, { recursive: true })
    await takeAll(browser, url)
  } finally {
    await browser.close()
  }
} finally {
  demo.kill('SIGINT')
  await once(demo, 'exit')
  await rm(directory, { recursive: true, force: true })
}
process.stdout.write(`done in ${Math.round((performance.now() - startedAt) / 1_000)} s\n`)

async function startDemo() {
  const child = spawn(process.execPath, [LEASEHOLD, 'up', '--demo', '--port', '0'], {
    cwd: directory,
    env: { ...process.env, DATABASE_URL: '', LEASEHOLD_INSTANCE_NAME: 'demo' },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  for await (const line of createInterface({ input: child.stdout })) {
    const found = /^ {2}HTTP +(\S+)/.exec(line)?.[1]
    if (found === undefined) continue
    child.stdout.resume()
    return { demo: child, url: found }
  }
  throw new Error('The demo has ended before it was up.')
}

async function ask(base, path) {
  const response = await fetch(`${base}/api/v1${path}`)
  if (!response.ok) throw new Error(`${path} answered with ${response.status}: ${await response.text()}`)
  return response.json()
}

async function untilFilled(base) {
  const until = performance.now() + WAIT_MS
  for (;;) {
    const answers = await Promise.all(AWAITED.map(async (path) => ask(base, path)))
    const empty = AWAITED.filter((_, index) => answers[index].items.length === 0)
    if (empty.length === 0) return
    if (performance.now() > until)
      throw new Error(`Still empty after ${WAIT_MS / 1_000} s: ${empty.join(', ')}`)
    await delay(1_000)
  }
}

async function addressOf(base, [, path, list]) {
  if (list === undefined) return path
  const { items } = await ask(base, list)
  return items[0] === undefined ? undefined : `${path}${items[0].id}`
}

async function takeAll(browser, base) {
  for (const theme of THEMES)
    for (const [size, viewport] of Object.entries(SIZES)) {
      const context = await browser.newContext({ viewport, colorScheme: theme, deviceScaleFactor: 1 })
      const page = await context.newPage()
      for (const entry of PAGES) {
        const [name] = entry
        if (chosen.length > 0 && !chosen.includes(name)) continue
        const address = await addressOf(base, entry)
        if (address === undefined) throw new Error(`There is no row for the page ${name}.`)
        await take(page, `${base}${address}`, `${name}-${theme}-${size}.png`)
      }
      await context.close()
    }
}

async function take(page, address, file) {
  await page.goto(address)
  await page.locator('main h1, main .empty').first().waitFor()
  if ((await page.getByText('There is no such page.').count()) > 0) {
    process.stderr.write(`${file}: there is no such page\n`)
    return
  }
  await page.getByRole('button', { name: /^Live/ }).waitFor()
  while ((await page.locator('main .reading').count()) > 0) await page.waitForTimeout(100)
  // Charts are drawn after the answer.
  await page.waitForTimeout(500)
  const path = join(IMAGES, file)
  await page.screenshot({ path })
  process.stdout.write(`${file} ${Math.round((await stat(path)).size / 1_024)} KB\n`)
}
