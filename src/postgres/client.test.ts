import { once } from 'node:events'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { PassThrough } from 'node:stream'

import { Client, Connection } from 'pg'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'

import { useDatabase } from '../../test/support/database.ts'
import { removeDirectory, temporaryDirectory } from '../../test/support/directory.ts'
import {
  ENDLESS,
  Impostor,
  IMPOSTORS,
  message,
  UNREADABLE_ROW,
  UNREADABLE_SERVERS,
} from '../../test/support/impostor.ts'
import { useProcesses } from '../../test/support/processes.ts'
import { startProxy } from '../../test/support/proxy.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { startServer } from '../../test/support/server.ts'
import { LeaseholdError } from '../errors.ts'
import { endOnUnreadable, SCRAM_ONLY_PREFIX } from './client.ts'
import { type DatabaseEvent, openDatabase } from './database.ts'
import { Listener, type ListenerEvent } from './listener.ts'
import type { Queryable } from './queryable.ts'

useQuietProcess()
const { spawnNode } = useProcesses()
const database = useDatabase()

const PASSWORD = `${SCRAM_ONLY_PREFIX}only-for-this-test`
const STATEMENT = 'select 7 as statement'

let directory: string

beforeEach(async () => {
  directory = await temporaryDirectory()
})

afterEach(async () => {
  await removeDirectory(directory)
})

/** Ours, or that of `pg` for a proof that is missing or wrong. */
const REFUSED = /The password was not sent|SASL/

describe.each(Object.entries(IMPOSTORS))('an impostor that %s', (_, answers) => {
  let impostor: Impostor
  let url: string

  afterEach(async () => impostor.close())

  async function take(on: 'Unix socket' | 'TCP'): Promise<void> {
    impostor = new Impostor(answers)
    const port = await impostor.listen(on === 'TCP' ? 0 : join(directory, '.s.PGSQL.5432'))
    const user = `postgresql://postgres:${PASSWORD}`
    url = on === 'TCP' ? `${user}@127.0.0.1:${port}/x` : `${user}@localhost:5432/x?host=${directory}`
  }

  it.each(['Unix socket', 'TCP'] as const)(
    'gets neither the password nor a statement from a pool that tries repeatedly, over %s',
    async (on) => {
      await take(on)
      const db = openDatabase({ url })
      for (const attempt of [1, 2]) {
        await expect(db.query({ text: STATEMENT })).rejects.toThrow(REFUSED)
        expect(impostor.connections).toBe(attempt)
      }
      await db.close()
      expect(impostor.hasReceived(PASSWORD)).toBe(false)
      expect(impostor.text).not.toContain(STATEMENT)
    },
  )

  it('gets neither the password nor a statement from a listener', async () => {
    await take('Unix socket')
    const events: ListenerEvent[] = []
    const listener = new Listener({
      url,
      channels: ['channel'],
      onNotification: () => {},
      onEvent: (event) => events.push(event),
    })
    listener.start()
    await expect.poll(() => events.length).toBeGreaterThan(1)
    await listener.stop()
    expect(events.every(({ type }) => type === 'disconnected')).toBe(true)
    expect(impostor.hasReceived(PASSWORD)).toBe(false)
    expect(impostor.text).not.toContain('channel')
  })
})

it('a PostgreSQL that is configured to ask for the password in clear text or as MD5 does not get it', async () => {
  const hbaFile = join(directory, 'pg_hba.conf')
  await writeFile(
    hbaFile,
    [
      'host all clear 127.0.0.1/32 password',
      'host all hashed 127.0.0.1/32 md5',
      'host all all 127.0.0.1/32 scram-sha-256',
    ].join('\n'),
  )
  const server = await startServer({ settings: { hba_file: hbaFile } })
  try {
    const admin = openDatabase({ url: server.url })
    await admin.query({ text: `create role clear login password '${PASSWORD}'` })
    await admin.query({ text: `create role proved login password '${PASSWORD}'` })
    await admin.query({
      text: `set password_encryption = 'md5'; create role hashed login password '${PASSWORD}'`,
    })
    await admin.close()
    const as = (user: string): string => {
      const url = new URL(server.url)
      url.username = user
      url.password = PASSWORD
      return url.href
    }
    for (const user of ['clear', 'hashed']) {
      // As any other client it would have sent the password, and would be connected.
      const other = new Client({ connectionString: as(user) })
      await other.connect()
      await other.end()
      const db = openDatabase({ url: as(user) })
      await expect(db.query({ text: STATEMENT })).rejects.toMatchObject({
        code: 'EMBEDDED_FAILED',
        message: expect.stringMatching(/The password was not sent/),
      })
      await db.close()
    }
    const db = openDatabase({ url: as('proved') })
    expect((await db.query({ text: STATEMENT })).rows).toEqual([{ statement: 7 }])
    await db.close()
  } finally {
    await server.remove()
  }
})

it('a password without the prefix is sent in the way the server asks for, as other servers require', async () => {
  const impostor = new Impostor(IMPOSTORS['asks for the password in clear text'])
  const port = await impostor.listen(0)
  const client = new Client({ connectionString: `postgresql://somebody:ordinary@127.0.0.1:${port}/x` })
  client.on('error', () => {})
  const connected = client.connect().catch(() => undefined)
  await expect.poll(() => impostor.hasReceived('ordinary')).toBe(true)
  const ended = once(client, 'end')
  client.connection.stream.destroy()
  await Promise.all([ended, connected])
  await impostor.close()
})

describe.each(Object.entries(UNREADABLE_SERVERS))('a server that %s', (_, { answers, error }) => {
  let server: Impostor
  let url: string

  beforeEach(async () => {
    server = new Impostor(answers)
    url = `postgresql://somebody:ordinary@127.0.0.1:${await server.listen(0)}/x`
  })

  afterEach(async () => server.close())

  it('costs a pool the connection and not the process, and the next statement opens another', async () => {
    const db = openDatabase({ url })
    for (const attempt of [1, 2]) {
      await expect(db.query({ text: STATEMENT })).rejects.toMatchObject({
        code: 'DATABASE_UNAVAILABLE',
        message: expect.stringMatching(error),
      })
      expect(server.connections).toBe(attempt)
    }
    await expect.poll(() => server.open).toBe(0)
    await db.close()
  })

  it('costs a listener the connection and not the process, and it connects again', async () => {
    const events: ListenerEvent[] = []
    const listener = new Listener({
      url,
      channels: ['channel'],
      onNotification: () => {},
      onEvent: (event) => events.push(event),
    })
    listener.start()
    await expect.poll(() => events.length).toBeGreaterThan(1)
    await listener.stop()
    for (const event of events) {
      expect(event).toMatchObject({
        type: 'disconnected',
        error: { code: 'DATABASE_UNAVAILABLE', message: expect.stringMatching(error) },
      })
    }
    expect(server.connections).toBeGreaterThan(1)
  })
})

it.each(Object.entries(ENDLESS))(
  'a server that sends %s does not occupy a process for ever',
  async (_, bytes) => {
    const server = new Impostor([bytes])
    const url = `postgresql://somebody:ordinary@127.0.0.1:${await server.listen(0)}/x`
    const script = join(directory, 'connect.mjs')
    await writeFile(
      script,
      `import { openDatabase } from ${JSON.stringify(new URL('../../dist/postgres/database.js', import.meta.url).href)}
      await openDatabase({ url: ${JSON.stringify(url)} }).query({ text: 'select' })`,
    )
    // In a process of its own, because nothing else ends a search that never pauses.
    const child = spawnNode(script)
    await child.exited
    expect(child.output().stderr).toMatch(/cannot be read/)
    await server.close()
  },
)

it('errors and notices are read whole where each byte of them arrives by itself', async () => {
  const stream = new PassThrough()
  const connection = new Connection({ stream: () => stream })
  endOnUnreadable(connection)
  // `pg` calls it when the socket is connected; the types of `pg` leave it out.
  Reflect.apply(Reflect.get(connection, 'attachListeners'), connection, [stream])
  const heard: unknown[] = []
  for (const type of ['errorMessage', 'notice'])
    connection.on(type, ({ code, message: text }) => heard.push([type, code, text]))
  const fields = (text: string): string => `C01000\0M${text}\0\0`
  for (const byte of Buffer.concat([
    message('N', fields('first')),
    message('E', fields('second')),
    message('N', fields('')),
  ]))
    stream.write(Buffer.from([byte]))
  await expect.poll(() => heard).toHaveLength(3)
  expect(heard).toEqual([
    ['notice', '01000', 'first'],
    ['errorMessage', '01000', 'second'],
    ['notice', '01000', ''],
  ])
  expect(stream.destroyed).toBe(false)
})

async function failureOf(work: Promise<unknown>): Promise<string | undefined> {
  const error = await work.catch((reason: unknown) => reason)
  return error instanceof LeaseholdError ? error.code : undefined
}

it.each(['idle', 'in a transaction'])(
  'bytes that cannot be read end a connection that is %s, and the pool opens another',
  async (state) => {
    const proxy = await startProxy(database.url)
    const events: DatabaseEvent[] = []
    const db = openDatabase({ url: proxy.url, onEvent: (event) => events.push(event) })
    try {
      await db.query({ text: STATEMENT })
      const work = async (tx: Queryable): Promise<void> => {
        await tx.query({ text: STATEMENT })
        proxy.inject(UNREADABLE_ROW)
        await expect.poll(() => events).toHaveLength(1)
        await tx.query({ text: STATEMENT })
      }
      const failure = state === 'idle' ? proxy.inject(UNREADABLE_ROW) : await failureOf(db.transaction(work))
      await expect
        .poll(() => events)
        .toMatchObject([{ type: 'connectionLost', error: { code: 'DATABASE_UNAVAILABLE' } }])
      expect(failure).toBe(state === 'idle' ? undefined : 'DATABASE_UNAVAILABLE')
      expect((await db.query({ text: STATEMENT })).rows).toEqual([{ statement: 7 }])
    } finally {
      await db.close()
      await proxy.close()
    }
  },
)
