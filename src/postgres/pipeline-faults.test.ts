/** Pipelines on servers that break the protocol, in every way that a message can be wrong, missing, late or cut. */
import type { Socket } from 'node:net'
import { setImmediate as turn } from 'node:timers/promises'
import fc from 'fast-check'
import { afterEach, describe, expect, it } from 'vitest'
import { GREETING, Impostor, message, UNREADABLE_ROW } from '../../test/support/impostor.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { openDatabase, type Database, type DatabaseEvent, type DatabaseOptions } from './database.ts'
import { failedStatement } from './pipeline.ts'

useQuietProcess()
const toClose: { close(): Promise<void> }[] = []

afterEach(async () => {
  for (const it of toClose.splice(0).toReversed()) await it.close()
})

interface Served {
  readonly server: Impostor
  readonly db: Database
  readonly events: DatabaseEvent[]
}

/** A server with these answers on each connection, the first one to the first pipeline. */
async function serve(
  answers: readonly (Buffer | ((client: Socket) => void))[],
  options: Partial<DatabaseOptions> = {},
): Promise<Served> {
  const server = new Impostor([GREETING, ...answers])
  const url = `postgresql://somebody:ordinary@127.0.0.1:${await server.listen(0)}/x`
  const events: DatabaseEvent[] = []
  const db = openDatabase({ url, maxConnections: 1, onEvent: (event) => events.push(event), ...options })
  toClose.push(server, db)
  return { server, db, events }
}

function int16(value: number): Buffer {
  const bytes = Buffer.alloc(2)
  bytes.writeInt16BE(value)
  return bytes
}

const INT4 = 23
const parsed = message('1')
const bound = message('2')
const complete = message('C', 'SELECT 1\0')
const ready = message('Z', 'I')
const failed = message('E', 'SERROR\0VERROR\0C22012\0Mfor this test\0\0')
const fatal = message('E', 'SFATAL\0VFATAL\0C57P01\0Mfor this test\0\0')
const suspended = message('s')
const copyIn = message('G', Buffer.from([0, 0, 0]))

function described(...names: string[]): Buffer {
  const fields = names.flatMap((name) => [`${name}\0`, 0, int16(0), INT4, int16(4), -1, int16(0)])
  return message('T', int16(names.length), ...fields)
}

function row(...values: string[]): Buffer {
  return message('D', int16(values.length), ...values.flatMap((value) => [value.length, value]))
}

/** Without names: after a slow statement with a name, the session would ask for its plan to be discarded. */
const STATEMENTS = [{ text: 'select 1 as n' }, { text: 'select 2 as n' }]
const first = Buffer.concat([parsed, bound, described('n'), row('1'), complete])
const second = Buffer.concat([parsed, bound, described('n'), row('2'), complete])
const whole = Buffer.concat([first, second, ready])
const refused = Buffer.concat([first, parsed, bound, failed, ready])
const ROWS = [[{ n: 1 }], [{ n: 2 }]]

async function rowsOf(db: Database): Promise<object[][]> {
  return (await db.pipeline(STATEMENTS)).map(({ rows }) => rows)
}

async function failureOf(work: Promise<unknown>): Promise<{ readonly code?: string }> {
  return work.then(
    () => ({}),
    (error: { readonly code?: string }) => error,
  )
}

describe('a server that breaks the protocol', () => {
  it.each([
    ['is ready before it has answered', ready],
    ['is ready after the first of two statements', Buffer.concat([first, ready])],
    ['answers more statements than it was sent', Buffer.concat([first, second, complete, ready])],
    ['sends a row that it has not described', Buffer.concat([parsed, bound, row('1'), complete])],
    ['sends a row with other columns', Buffer.concat([parsed, bound, described('n'), row('1', '2')])],
    ['sends a row after the last statement', Buffer.concat([first, second, row('3'), ready])],
    ['sends a row that cannot be read', Buffer.concat([first, UNREADABLE_ROW])],
    ['sends a message of an unknown type', Buffer.concat([first, message('q', 0)])],
    ['suspends a statement', Buffer.concat([parsed, bound, described('n'), row('1'), suspended])],
    ['waits for the rows of a COPY', Buffer.concat([parsed, bound, copyIn])],
    ['sends a row after an error', Buffer.concat([first, failed, row('2')])],
    ['sends an error after an error', Buffer.concat([first, failed, failed])],
    ['parses after an error', Buffer.concat([first, failed, parsed])],
    ['ends the session after an error', Buffer.concat([first, failed, fatal])],
    ['ends the session, but not the connection', Buffer.concat([first, fatal])],
  ])('one that %s costs the connection, and the next pipeline opens another', async (_, answer) => {
    const { server, db, events } = await serve([answer])
    for (const connections of [1, 2]) {
      expect(await failureOf(db.pipeline(STATEMENTS))).toMatchObject({ code: 'DATABASE_UNAVAILABLE' })
      await expect.poll(() => server.open).toBe(0)
      expect(server.connections).toBe(connections)
    }
    expect(events.map(({ type }) => type)).toEqual(['connectionLost', 'connectionLost'])
  })

  it.each([
    ['more answers to Parse and Bind', Buffer.concat([parsed, parsed, bound, bound, whole])],
    ['no answers to Parse and Bind', Buffer.concat([described('n'), row('1'), complete, second, ready])],
    ['a notice', Buffer.concat([first, message('N', 'SNOTICE\0C00000\0Mtext\0\0'), second, ready])],
    ['a notification', Buffer.concat([first, message('A', 7, 'channel\0payload\0'), second, ready])],
    ['the value of a parameter', Buffer.concat([message('S', 'TimeZone\0UTC\0'), whole])],
    ['rows that nobody asked for', Buffer.concat([message('d', 'row'), message('c'), whole])],
  ])('%s, sent in addition or left out, make no difference', async (_, answer) => {
    const { server, db } = await serve([answer, whole])
    expect(await rowsOf(db)).toEqual(ROWS)
    expect(await rowsOf(db)).toEqual(ROWS)
    expect(server.connections).toBe(1)
  })

  it.each([
    ['an error', failed],
    ['the end of the session', fatal],
    ['a row', row('3')],
    ['bytes that cannot be read', UNREADABLE_ROW],
  ])('%s after the end costs the connection, but not the results', async (_, addition) => {
    const { server, db } = await serve([Buffer.concat([whole, addition])])
    expect(await rowsOf(db)).toEqual(ROWS)
    expect(await rowsOf(db)).toEqual(ROWS)
    expect(server.connections).toBe(2)
  })

  it('whatever messages it sends in whatever order, every pipeline settles, and every connection is closed', async () => {
    const named = STATEMENTS.map((each, n) => ({ ...each, name: `n${n}` }))
    let answer = whole
    const { server, db } = await serve([(client) => client.end(answer)])
    const any = [parsed, bound, complete, ready, failed, fatal, suspended, copyIn, first, second, row('1')]
    const more = [
      described('n'),
      described(),
      row(),
      message('I'),
      message('n'),
      message('W', 0),
      message('q'),
    ]
    const bytes = fc.uint8Array({ maxLength: 8 }).map((array) => Buffer.from(array))
    const part = fc.oneof(
      { weight: 30, arbitrary: fc.constantFrom(...any, ...more) },
      { weight: 1, arbitrary: bytes },
    )
    await fc.assert(
      fc.asyncProperty(fc.array(part, { maxLength: 14 }), async (parts) => {
        answer = Buffer.concat(parts)
        const outcome = await db.pipeline(named).catch((error: unknown) => error)
        expect([2, 'DATABASE_UNAVAILABLE', '22012']).toContain(
          Array.isArray(outcome) ? outcome.length : Object(outcome).code,
        )
        await expect.poll(() => server.open, { interval: 1 }).toBe(0)
      }),
      { numRuns: 300 },
    )
  })
})

describe('a server that is slow', () => {
  it.each([
    ['does not answer', Buffer.alloc(0)],
    ['stops after the first statement', first],
    ['does not say when it is ready', Buffer.concat([first, second])],
    ['does not say when it is ready after an error', Buffer.concat([first, failed])],
  ])('one that %s costs the pipeline its time limit and the connection', async (_, answer) => {
    const { server, db, events } = await serve([answer], { queryTimeoutMs: 200 })
    for (const connections of [1, 2]) {
      expect(await failureOf(db.pipeline(STATEMENTS))).toMatchObject({ code: 'QUERY_TIMEOUT' })
      await expect.poll(() => server.open).toBe(0)
      expect(server.connections).toBe(connections)
    }
    expect(events.map(({ type }) => type)).toEqual(['queryTimedOut', 'queryTimedOut'])
  })

  it('after an error, the connection is not used before the server is ready', async () => {
    const halves = [Buffer.concat([first, failed]), ready]
    let client: Socket | undefined
    const { server, db } = await serve([
      (socket) => {
        client = socket
        socket.write(halves[0] ?? '')
      },
      whole,
    ])
    const settled: string[] = []
    const failing = failureOf(db.pipeline(STATEMENTS)).then((error) => {
      settled.push('failed')
      return error
    })
    const next = rowsOf(db)
    await expect.poll(() => client?.bytesWritten).toBe(GREETING.length + (halves[0]?.length ?? 0))
    const { length } = server.received
    for (let n = 0; n < 20; n += 1) await turn()
    expect([settled, server.received.length]).toEqual([[], length])
    client?.write(halves[1] ?? '')
    expect(await failing).toMatchObject({ code: '22012' })
    expect(await next).toEqual(ROWS)
    expect(server.connections).toBe(1)
  })

  it('an answer of which each byte arrives by itself is read whole', async () => {
    const inPieces =
      (bytes: Buffer) =>
      async (client: Socket): Promise<void> => {
        client.setNoDelay(true)
        for (const byte of bytes) {
          client.write(Buffer.from([byte]))
          await turn()
        }
      }
    const answers = [whole, refused, whole].map(inPieces)
    const { server, db } = await serve(answers.map((answer) => (client) => void answer(client)))
    expect(await rowsOf(db)).toEqual(ROWS)
    const error = await failureOf(db.pipeline(STATEMENTS))
    expect(error).toMatchObject({ code: '22012' })
    expect(failedStatement(error)).toBe(1)
    expect(await rowsOf(db)).toEqual(ROWS)
    expect(server.connections).toBe(1)
  })
})

describe.each([
  ['results', whole],
  ['an error', refused],
])('a connection that ends while the server sends %s', (_, bytes) => {
  it('rejects the pipeline, whichever byte was the last one', async () => {
    let length = 0
    const { server, db } = await serve([(client) => client.end(bytes.subarray(0, length))])
    for (; length < bytes.length; length += 1) {
      expect(await failureOf(db.pipeline(STATEMENTS)), `${length} bytes`).toMatchObject({
        code: 'DATABASE_UNAVAILABLE',
      })
    }
    await expect.poll(() => server.open).toBe(0)
    expect(server.connections).toBe(bytes.length)
  })
})

it('a connection that is reset while the pipeline is sent rejects it', async () => {
  const { server, db } = await serve([(client) => client.resetAndDestroy()])
  const large = { text: 'select $1', values: ['x'.repeat(20_000_000)] }
  expect(await failureOf(db.pipeline([large, large]))).toMatchObject({ code: 'DATABASE_UNAVAILABLE' })
  await expect.poll(() => server.open).toBe(0)
})

it('close() ends a pipeline that is not answered', async () => {
  const { server, db } = await serve([Buffer.alloc(0)])
  const failure = failureOf(db.pipeline(STATEMENTS))
  await expect.poll(() => server.text).toContain('select 2 as n')
  await db.close({ withinMs: 1 })
  expect(await failure).toMatchObject({ code: 'DATABASE_CLOSED' })
  await expect.poll(() => server.open).toBe(0)
})

it('a timer of the driver does not outlive its pipeline', async () => {
  const server = new Impostor([GREETING, whole, refused])
  const port = await server.listen(0)
  const db = openDatabase({ url: `postgresql://somebody:ordinary@127.0.0.1:${port}/x?query_timeout=600000` })
  toClose.push(server, db)
  const timers = (): number => process.getActiveResourcesInfo().filter((each) => each === 'Timeout').length
  await rowsOf(db)
  const before = timers()
  await failureOf(db.pipeline(STATEMENTS))
  expect(timers()).toBe(before)
})
