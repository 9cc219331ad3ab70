/** The example with Prisma, which has packages of its own. */
import { expect, it } from 'vitest'
import { useDatabase } from './support/database.ts'
import { installed } from './support/installed.ts'
import { useProcesses } from './support/processes.ts'

const { spawnNode } = useProcesses()
const { url: databaseUrl } = useDatabase()

it('Prisma: an order and its event are one transaction of the real client', async () => {
  await installed('examples/prisma')
  const env = { DATABASE_URL: databaseUrl }
  const launcher = spawnNode('scripts/example.mjs', ['prisma'], { env })
  await launcher.line((line) => line === 'order 1 is confirmed')
  await launcher.line((line) => line === 'not placed, and no event: coffee is sold out')
  expect(launcher.output().stdout.match(/is confirmed/g)).toHaveLength(1)
  expect(await launcher.kill(), launcher.output().stderr).toEqual({ code: 0, signal: null })
})
