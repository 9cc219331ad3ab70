import { once } from 'node:events'
import { connect } from 'node:net'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { startEmbedded } from '../../src/embedded/index.ts'
import { removeDirectory, temporaryDirectory } from './directory.ts'
import { processesOn, serversOf } from './server.ts'

it('serversOf() returns one process per running server, even while a client is connecting', async () => {
  const directory = await temporaryDirectory()
  onTestFinished(async () => removeDirectory(directory))
  const server = await startEmbedded({ directory: join(directory, '.leasehold'), settings: { fsync: 'off' } })
  onTestFinished(async () => server.stop())
  const [postmaster] = await serversOf(directory)
  // A client that never sends its name leaves its backend with the command line of the server.
  const silent = connect(join(server.directory, 'data', '.s.PGSQL.5432'))
  onTestFinished(() => void silent.destroy())
  await once(silent, 'connect')
  await expect.poll(async () => processesOn(directory), { timeout: 120_000 }).toHaveLength(2)
  expect(await serversOf(directory)).toEqual([postmaster])
  silent.destroy()
  await server.stop()
  expect(await serversOf(directory)).toEqual([])
})
