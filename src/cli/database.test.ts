import { expect, it, onTestFinished } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { startProxy } from '../../test/support/proxy.ts'
import { reachDatabase } from './database.ts'
import { createLog } from '../observe/log.ts'
import { openDatabase } from '../postgres/index.ts'

const database = useDatabase()

function reach(url: string, waitMs: number, onLine: (line: string) => void = () => {}, signal?: AbortSignal) {
  const db = openDatabase({ url })
  onTestFinished(async () => db.close())
  const log = createLog({ level: 'info', format: 'json', write: onLine })
  const shown = { shownUrl: 'postgresql://shown', source: 'DATABASE_URL' }
  return reachDatabase({ db, ...shown, waitMs, log, ...(signal === undefined ? {} : { signal }) })
}

it('a database that is still starting is waited for, and the log says so', async () => {
  const proxy = await startProxy(database.url)
  onTestFinished(async () => proxy.close())
  await proxy.refuse()
  const lines: string[] = []
  await reach(proxy.url, 60_000, (line) => {
    lines.push(line)
    if (lines.length === 1) void proxy.accept()
  })
  expect(lines[0]).toContain('ECONNREFUSED')
})

it('a database that does not answer within databaseWaitMs is an error that names it without its password', async () => {
  const proxy = await startProxy(database.url)
  onTestFinished(async () => proxy.close())
  await proxy.refuse()
  await expect(reach(proxy.url, 0)).rejects.toMatchObject({
    code: 'DATABASE_UNAVAILABLE',
    message: expect.stringMatching(
      /postgresql:\/\/shown \(DATABASE_URL\).*databaseWaitMs = 0 ms: .*ECONNREFUSED/,
    ),
  })
})

it.each([
  ['a wrong password', (url: URL) => void (url.password = 'wrong'), 'password authentication failed'],
  ['an unknown database', (url: URL) => void (url.pathname = '/nowhere'), 'does not exist'],
])('%s is reported at once, without waiting', async (_, change, reason) => {
  const url = new URL(database.url)
  change(url)
  await expect(reach(url.href, 60_000)).rejects.toMatchObject({
    code: 'SETTING_INVALID',
    message: expect.stringContaining(reason),
  })
})

it('a signal ends the wait for the database', async () => {
  const proxy = await startProxy(database.url)
  onTestFinished(async () => proxy.close())
  await proxy.refuse()
  const controller = new AbortController()
  const waiting = reach(proxy.url, 60_000, () => controller.abort(), controller.signal)
  await expect(waiting).rejects.toMatchObject({ name: 'AbortError' })
})
