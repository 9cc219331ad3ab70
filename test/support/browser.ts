/** The dashboard in a real browser: Debian's Chromium, driven by playwright-core, against a real server and database. */
import { getRequestListener } from '@hono/node-server'
import { createServer, type Server } from 'node:http'
import { once } from 'node:events'
import { type Browser, type BrowserContext, chromium, type Page } from 'playwright-core'
import { afterAll, beforeAll, beforeEach, expect, onTestFinished } from 'vitest'
import { createKey } from '../../src/operations/api-keys.ts'
import type { KeyRole } from '../../src/operations/roles.ts'
import { type Database, openDatabase } from '../../src/postgres/index.ts'
import type { Api } from '../../src/server/api/api.ts'
import { createDashboard, type DashboardOptions } from '../../src/server/dashboard.ts'
import { findProgram } from './brokers/broker.ts'
import { useDatabase } from './database.ts'
import { useLoginRoles } from './login-roles.ts'
import { SECRET_KEY } from './webhook-endpoints.ts'

export const CHROMIUM_FLAGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
]

const MISSING = 'Chromium is not installed. To run these tests: apt-get install chromium-headless-shell'

export type KeyName = KeyRole | 'tenantRead' | 'tenantOperate'

export interface OpenOptions {
  /** The key to sign in with. Default `admin`; null: not at all. */
  readonly as?: KeyName | null
  readonly viewport?: { readonly width: number; readonly height: number }
  readonly colorScheme?: 'light' | 'dark'
}

export interface TestDashboard {
  /** Of the database, as its owner. */
  readonly databaseUrl: string
  readonly db: Database
  /** Of the server, without a slash at its end. Available in tests. */
  readonly url: () => string
  readonly keys: Readonly<Record<KeyName, string>>
  readonly browser: () => Browser
  /** Opens a page in a browser context of its own, signed in. Errors and refused resources of the page fail the test. */
  readonly open: (path: string, options?: OpenOptions) => Promise<Page>
  /** The same, without signing in, and in this context. */
  readonly context: (options?: OpenOptions) => Promise<BrowserContext>
}

export const TENANT = 'acme'

/**
 * Serves the dashboard on the database of this test file. Where Chromium is not installed, the tests of the file are skipped
 * and the reason is printed; with LEASEHOLD_REQUIRE_BROKERS=1, as in CI, they fail.
 */
export function useDashboard(options: Partial<DashboardOptions> = {}): TestDashboard {
  const database = useDatabase()
  const logins = useLoginRoles(database)
  const db = openDatabase({ url: database.url })
  const own = openDatabase({ url: logins.api.url })
  const keys: Record<string, string> = {}
  const errors: unknown[] = []
  let program: string | undefined
  let browser: Browser | undefined
  let dashboard: Api | undefined
  let server: Server | undefined
  let url = ''

  beforeAll(async () => {
    // The shell is the same browser without its own windows, which cost a third of the processor time of these tests.
    program = (await findProgram('chromium-headless-shell')) ?? (await findProgram('chromium'))
    if (program === undefined) {
      if (process.env['LEASEHOLD_REQUIRE_BROKERS'] === '1') throw new Error(MISSING)
      process.stderr.write(`skipped: ${MISSING}\n`)
      return
    }
    for (const [name, role, tenant] of [
      ['read', 'read', undefined],
      ['operate', 'operate', undefined],
      ['admin', 'admin', undefined],
      ['tenantRead', 'read', TENANT],
      ['tenantOperate', 'operate', TENANT],
    ] as const)
      keys[name] = (await createKey(db, { name, role, tenant }, { principal: 'test' })).key
    dashboard = createDashboard({
      db: own,
      requestsPerSecond: 100_000,
      burst: 100_000,
      webhooks: { secretKey: SECRET_KEY, network: { allow: ['127.0.0.0/8'] } },
      onError: (error) => void errors.push(error),
      ...options,
    })
    const served = dashboard
    const answer = getRequestListener(async (request, env) => served.fetch(request, env), {
      overrideGlobalObjects: false,
    })
    server = createServer((request, response) => void answer(request, response))
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
    const address = server.address()
    url = `http://127.0.0.1:${typeof address === 'object' && address !== null ? address.port : 0}${options.basePath ?? ''}`
    browser = await chromium.launch({ executablePath: program, args: CHROMIUM_FLAGS })
  })
  beforeEach((context) => {
    if (program === undefined) context.skip(MISSING)
  })
  afterAll(async () => {
    await browser?.close()
    await dashboard?.stop()
    server?.closeAllConnections()
    server?.close()
    await Promise.all([db.close(), own.close()])
    expect(errors, 'errors of the server').toEqual([])
  })

  async function context({ viewport, colorScheme }: OpenOptions = {}): Promise<BrowserContext> {
    if (browser === undefined) throw new Error(MISSING)
    const opened = await browser.newContext({
      viewport: viewport ?? { width: 1280, height: 900 },
      colorScheme: colorScheme ?? 'light',
    })
    opened.setDefaultTimeout(60_000)
    onTestFinished(async () => opened.close())
    return opened
  }

  async function open(path: string, opening: OpenOptions = {}): Promise<Page> {
    const { as = 'admin' } = opening
    const opened = await context(opening)
    const page = await opened.newPage()
    const troubles = watch(page)
    onTestFinished(() => expect(troubles, 'errors of the page').toEqual([]))
    if (as !== null) {
      const response = await opened.request.post(`${url}/api/v1/session`, { data: { key: keys[as] } })
      expect(response.ok()).toBe(true)
    }
    await page.goto(`${url}${path}`)
    return page
  }

  return {
    databaseUrl: database.url,
    db,
    url: () => url,
    keys: keys as Record<KeyName, string>,
    browser: () => {
      if (browser === undefined) throw new Error(MISSING)
      return browser
    },
    open,
    context,
  }
}

/** What goes wrong in a page: exceptions, and what the content security policy refuses. */
function watch(page: Page): string[] {
  const troubles: string[] = []
  page.on('pageerror', (error) => troubles.push(error.message))
  page.on('console', (message) => {
    // The browser reports every answer of 400 and more; tests that stage them look at the page.
    if (message.type() === 'error' && !message.text().startsWith('Failed to load resource'))
      troubles.push(message.text())
  })
  return troubles
}

/**
 * Types into a filter of a list. Enter puts it into the address at once, and from then on the rows of the search before
 * are marked as old: what follows sees the new search only.
 */
export async function filterBy(page: Page, label: string, text: string): Promise<void> {
  const field = page.getByLabel(label)
  await field.fill(text)
  await field.press('Enter')
}

/** Resolves when the list of the page has so many rows. Those of a search that is being replaced do not count. */
export async function untilRows(page: Page, count: number): Promise<void> {
  await expect.poll(async () => page.locator('tbody tr:not([aria-busy=true] *)').count()).toBe(count)
}
