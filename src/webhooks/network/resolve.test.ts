import { createSocket } from 'node:dgram'
import { once } from 'node:events'

import { describe, expect, it, onTestFinished } from 'vitest'

import { eventually } from '../../../test/support/brokers/eventually.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { createResolver } from './resolve.ts'

useQuietProcess()

const A = 1
const AAAA = 28
const NXDOMAIN = 3

type Records = Readonly<Record<string, { readonly 1?: readonly number[]; readonly 28?: readonly number[] }>>

/** A name server on loopback that knows these names and does not answer for names in `silent`. */
async function startNameServer(records: Records, silent: readonly string[] = []) {
  const asked: string[] = []
  const server = createSocket('udp4')
  server.on('message', (query, { port, address }) => {
    const { name, type, end } = questionOf(query)
    asked.push(name)
    if (silent.includes(name)) return
    const known = records[name]
    const bytes = type === A || type === AAAA ? known?.[type] : undefined
    server.send(answerTo(query.subarray(0, end), type, bytes, known === undefined), port, address)
  })
  server.bind(0, '127.0.0.1')
  await once(server, 'listening')
  onTestFinished(async () => {
    server.close()
    await once(server, 'close')
  })
  return { asked, servers: [`127.0.0.1:${server.address().port}`] }
}

function questionOf(query: Buffer): { name: string; type: number; end: number } {
  const labels: string[] = []
  let at = 12
  for (let length = query.readUInt8(at); length > 0; length = query.readUInt8(at)) {
    labels.push(query.toString('latin1', at + 1, at + 1 + length))
    at += 1 + length
  }
  return { name: labels.join('.').toLowerCase(), type: query.readUInt16BE(at + 1), end: at + 5 }
}

function answerTo(
  question: Buffer,
  type: number,
  bytes: readonly number[] | undefined,
  isUnknown: boolean,
): Buffer {
  const head = Buffer.from(question)
  head.writeUInt16BE(0x8180 | (isUnknown ? NXDOMAIN : 0), 2)
  head.writeUInt16BE(bytes === undefined ? 0 : 1, 6)
  head.writeUInt16BE(0, 8)
  head.writeUInt16BE(0, 10)
  if (bytes === undefined) return head
  // A pointer to the name in the question, the type, IN, a TTL of 0.
  const record = [0xc0, 12, 0, type, 0, 1, 0, 0, 0, 0, 0, bytes.length, ...bytes]
  return Buffer.concat([head, Buffer.from(record)])
}

/** Fails instead of asking the machine's own resolver, even if the code under test is wrong. */
async function noSystem(host: string): Promise<never> {
  throw new Error(`the system was asked for ${host}`)
}

const SIGNAL = new AbortController().signal
const SIX = [0x26, 0x06, 0x47, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x11, 0x11]

describe('names that name servers know', () => {
  it('a name has the addresses that the name servers return, IPv4 first', async () => {
    const { servers } = await startNameServer({
      'both.test': { 1: [93, 184, 216, 34], 28: SIX },
      'four.test': { 1: [8, 8, 8, 8] },
      'six.test': { 28: SIX },
    })
    const resolve = createResolver({ servers, askSystem: noSystem })
    expect(await resolve('both.test', SIGNAL)).toEqual(['93.184.216.34', '2606:4700::1111'])
    expect(await resolve('four.test', SIGNAL)).toEqual(['8.8.8.8'])
    expect(await resolve('six.test', SIGNAL)).toEqual(['2606:4700::1111'])
  })

  it('a name whose servers do not answer fails, and does not delay other names', async () => {
    const { asked, servers } = await startNameServer({ 'four.test': { 1: [8, 8, 8, 8] } }, ['silent.test'])
    const resolve = createResolver({ servers, timeoutMs: 2_000, tries: 1, askSystem: noSystem })
    // More than there are threads.
    const waiting = Array.from({ length: 8 }, async () => resolve('silent.test', SIGNAL))
    const ends = Promise.allSettled(waiting)
    expect(await resolve('four.test', SIGNAL)).toEqual(['8.8.8.8'])
    expect((await ends).map(({ status }) => status)).toEqual(Array.from({ length: 8 }, () => 'rejected'))
    await expect(waiting[0]).rejects.toThrow('ETIMEOUT')
    expect(asked).toContain('silent.test')
  })
})

it('a signal cancels the resolution', async () => {
  const { asked, servers } = await startNameServer({}, ['silent.test'])
  const controller = new AbortController()
  const resolve = createResolver({ servers, timeoutMs: 60_000, askSystem: noSystem })
  const waiting = resolve('silent.test', controller.signal)
  await eventually(async () => expect(asked).toContain('silent.test'))
  controller.abort()
  await expect(waiting).rejects.toThrow('ECANCELLED')
})

describe('names that only the system knows', () => {
  it.each(['intranet', 'localhost', 'a.localhost', 'unknown.test', 'nothing.test'])(
    'the system resolves %s',
    async (host) => {
      const { servers } = await startNameServer({ 'nothing.test': {} })
      const resolve = createResolver({ servers, askSystem: async () => ['10.0.0.1'] })
      expect(await resolve(host, SIGNAL)).toEqual(['10.0.0.1'])
    },
  )

  it('concurrent lookups of a name are shared, and at most two names are looked up at a time', async () => {
    const asked: string[] = []
    const answers: (() => void)[] = []
    const askSystem = async (host: string): Promise<readonly string[]> => {
      asked.push(host)
      await new Promise<void>((answer) => answers.push(answer))
      return [host]
    }
    const resolve = createResolver({ askSystem })
    const all = Promise.all(['a', 'a', 'b', 'c', 'c', 'a'].map(async (host) => resolve(host, SIGNAL)))
    expect(asked).toEqual(['a', 'b'])
    answers.shift()?.()
    await eventually(async () => expect(asked).toEqual(['a', 'b', 'c']))
    for (const answer of answers) answer()
    expect(await all).toEqual([['a'], ['a'], ['b'], ['c'], ['c'], ['a']])
  })

  it('the system resolves localhost, and no name server is asked', async () => {
    const { asked, servers } = await startNameServer({})
    const resolve = createResolver({ servers })
    const answers = await Promise.all(Array.from({ length: 8 }, async () => resolve('localhost', SIGNAL)))
    for (const addresses of answers) {
      expect(addresses.length).toBeGreaterThan(0)
      for (const address of addresses) expect(['127.0.0.1', '::1']).toContain(address)
    }
    expect(asked).toEqual([])
  })
})
