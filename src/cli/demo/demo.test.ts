import { randomBytes } from 'node:crypto'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, expect, it, onTestFinished } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { removeDirectory, temporaryDirectory } from '../../../test/support/directory.ts'
import { useProcesses } from '../../../test/support/processes.ts'
import { statuses, write } from '../../../test/support/running-relay.ts'
import { openDatabase } from '../../postgres/index.ts'
import { summaryLine } from './shop.ts'

const { spawnNode } = useProcesses()
const { url } = useDatabase()
const db = openDatabase({ url })
const project = new URL('../../../', import.meta.url)
afterAll(async () => db.close())

async function directory(): Promise<string> {
  const made = await temporaryDirectory()
  onTestFinished(async () => removeDirectory(made))
  return made
}

it('up --demo writes events, publishes them, prints a summary, and leaves nothing in flight when it stops', async () => {
  await write(db, null)
  const env = { DATABASE_URL: url, LEASEHOLD_PORT: '0' }
  const demo = spawnNode('dist/cli/main.js', ['up', '--demo'], { cwd: await directory(), env })
  expect(await demo.line((line) => line.startsWith('  Workers'))).toContain('outbox, reaper')
  const line = await demo.line((text) => Number(/published +(\d+)/.exec(text)?.[1] ?? 0) >= 20)
  expect(line).toMatch(
    /^ +\d+ s {3}written +\d+ {3}published +\d+ \( *\d+\/s\) {3}waiting +\d+ {3}in flight +\d+ {3}retried +\d+ {3}dead +\d+$/,
  )
  expect(demo.output().stdout).toContain('npx leasehold outbox list --status DEAD')
  expect(await demo.kill('SIGINT')).toEqual({ code: 0, signal: null })
  const { rows } = await db.query<{ status: string; count: number }>({
    text: 'select status, count(*)::int as count from leasehold_demo.outbox group by status',
  })
  const counts = new Map(rows.map(({ status, count }) => [status, count]))
  expect(counts.get('PUBLISHED')).toBeGreaterThanOrEqual(20)
  expect(counts.get('CLAIMED')).toBeUndefined()
  // The demo does not touch the events of the real outbox.
  expect(await statuses(db)).toEqual({ PENDING: 1 })
})

it('up --demo has endpoints, jobs and payments at work, logs none of their failures, and stops cleanly', async () => {
  const env = {
    DATABASE_URL: url,
    LEASEHOLD_PORT: '0',
    LEASEHOLD_SECRET_KEY: randomBytes(32).toString('base64'),
  }
  const demo = spawnNode('dist/cli/main.js', ['up', '--demo'], { cwd: await directory(), env })
  expect(await demo.line((line) => line.startsWith('  Workers'))).toContain(
    'webhooks, sync-jobs, sync, payments, outbox, reaper',
  )
  const http = (await demo.line((line) => line.startsWith('  HTTP'))).trim().split(/\s+/)[1]
  // Before anything else that it says.
  expect(await demo.line((line) => line.startsWith('The dashboard is at'))).toContain(http)
  const count = async (of: string): Promise<number> => {
    const { rows } = await db.query<{ count: number }>({
      text: `select count(*)::int as count from leasehold_demo.${of}`,
    })
    return rows[0]?.count ?? 0
  }
  for (const of of [
    'webhook_endpoints where open_until is not null',
    `webhook_outbox where delivery_status = 'delivered'`,
    'sync_checkpoints where completed_at is not null',
    `demo_payments where status in ('paid', 'refused')`,
  ])
    await expect.poll(async () => count(of), { interval: 200 }).toBeGreaterThan(0)
  expect(await count('webhook_endpoints')).toBe(3)
  expect(await count('api_keys')).toBe(2)
  expect(await demo.kill('SIGINT')).toEqual({ code: 0, signal: null })
  expect(demo.output().stderr).not.toMatch(/"level":"(?:warn|error)"|Warning/)
})

it('up --demo refuses to run when its events would go to a declared publisher', async () => {
  const cwd = await directory()
  const outbox = new URL('dist/outbox/index.js', project).href
  await writeFile(
    join(cwd, 'leasehold.config.mjs'),
    `import { relay } from '${outbox}'
    export default { workers: [relay({ publisher: { name: 'mine', publish: async () => {} } })] }`,
  )
  const env = { DATABASE_URL: url, LEASEHOLD_PORT: '0' }
  const refused = spawnNode('dist/cli/main.js', ['up', '--demo'], { cwd, env })
  expect(await refused.exited).toEqual({ code: 1, signal: null })
  expect(refused.output().stderr).toContain(
    '--demo is given, but leasehold.config declares the worker outbox',
  )
})

it('the summary shows what was written and what became of it', () => {
  const tally = { written: 40, published: 36, retried: 2, dead: 1 }
  const now = { seconds: 7, perSecond: 12.4, waiting: 2, inFlight: 1 }
  expect(summaryLine(tally, now)).toBe(
    '   7 s   written     40   published     36 ( 12/s)   waiting    2   in flight   1   retried    2   dead    1',
  )
})
