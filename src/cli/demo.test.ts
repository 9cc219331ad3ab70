import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, expect, it, onTestFinished } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { removeDirectory, temporaryDirectory } from '../../test/support/directory.ts'
import { useProcesses } from '../../test/support/processes.ts'
import { statuses, write } from '../../test/support/running-relay.ts'
import { openDatabase } from '../postgres/index.ts'
import { summaryLine } from './demo.ts'

const { spawnNode } = useProcesses()
const { url } = useDatabase()
const db = openDatabase({ url })
const project = new URL('../../', import.meta.url)
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
