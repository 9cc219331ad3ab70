import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'

import { afterEach, beforeEach, expect, it } from 'vitest'

import { removeDirectory, temporaryDirectory } from '../../test/support/directory.ts'
import { Impostor, IMPOSTORS } from '../../test/support/impostor.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { relay } from '../outbox/index.ts'
import { handlers } from '../outbox/publishers/handlers.ts'
import { Events, startRuntime } from '../worker/index.ts'
import { findEmbedded, startEmbedded } from './index.ts'
import { pidFilePath } from './running-server.ts'

useQuietProcess()

let directory: string

beforeEach(async () => {
  directory = await temporaryDirectory()
})

afterEach(async () => {
  await removeDirectory(directory)
})

it('a process whose embedded server was replaced sends the password on none of its connections', async () => {
  const server = await startEmbedded({ directory, settings: { fsync: 'off' } })
  const { password } = new URL(server.url)
  const events = new Events()
  events.on('trouble', () => {})
  const listening = events.next('listening')
  const runtime = await startRuntime({
    databaseUrl: server.url,
    migrate: true,
    presenceMs: 200,
    events,
    workers: [relay({ publisher: handlers({}) })],
    settings: { leaseMs: 2_000, heartbeatMs: 200 },
  })
  await listening
  await server.stop()

  const impostor = new Impostor(IMPOSTORS['asks for the password in clear text'])
  await impostor.listen(join(directory, 'data', '.s.PGSQL.5432'))
  const names = [`leasehold worker ${runtime.id}`, `leasehold ${runtime.id}`]
  for (const name of names) {
    await expect.poll(() => impostor.text.includes(name.slice(0, 63)), { timeout: 60_000 }).toBe(true)
  }
  await runtime.stop()
  expect(impostor.hasReceived(password)).toBe(false)
  await impostor.close()
})

it('an impostor at the address of the pid file is not taken for the server, and does not get the password', async () => {
  const server = await startEmbedded({ directory, settings: { fsync: 'off' } })
  const { password } = new URL(server.url)
  await server.stop()
  const impostor = new Impostor(IMPOSTORS['asks for the password in clear text'])
  const data = join(directory, 'data')
  await impostor.listen(join(data, '.s.PGSQL.5432'))
  await writeFile(pidFilePath(data), [process.pid, data, 1, 5432, data, '', '', 'ready', ''].join('\n'))
  expect(await findEmbedded(directory)).toBeUndefined()
  expect(impostor.connections).toBe(1)
  await impostor.close()
  expect(impostor.hasReceived(password)).toBe(false)
})
