/** What is refused before it can do harm: definitions, jobs, and queries that have no hash. */
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { emptySync, syncJobs } from '../../test/support/sync-rows.ts'
import { openDatabase } from '../postgres/database.ts'
import { chunkHash } from './plan.ts'
import type { NewJob } from './enqueue.ts'
import { createSync } from './sync.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const FINE = { plan: () => [], syncChunk: async () => Promise.resolve({ rows: 0 }) }

beforeEach(async () => emptySync(db))
afterAll(async () => db.close())

describe('a definition', () => {
  it.each([
    ['a name with a blank', 'two words', FINE, 'its name "two words"'],
    ['no plan', 'd', { syncChunk: FINE.syncChunk }, 'plan must be a function'],
    ['no syncChunk', 'd', { plan: FINE.plan }, 'syncChunk must be a function'],
    ['a hash that is none', 'd', { ...FINE, hash: 'sha1' }, 'hash must be a function'],
    ['no room', 'd', { ...FINE, concurrency: 0 }, 'concurrency is 0'],
    ['an unknown policy', 'd', { ...FINE, onChunkFailure: 'panic' }, 'onChunkFailure is "panic"'],
    ['a rate of nothing', 'd', { ...FINE, source: { name: 's', perSecond: 0 } }, 'source.perSecond is 0'],
    [
      'a burst of a half',
      'd',
      { ...FINE, source: { name: 's', perSecond: 1, burst: 0.5 } },
      'source.burst is 0.5',
    ],
    ['a source without a name', 'd', { ...FINE, source: { name: '', perSecond: 1 } }, 'source.name'],
    [
      'a source without end',
      'd',
      { ...FINE, source: { name: 's'.repeat(501), perSecond: 1 } },
      'source.name',
    ],
    ['a source with NUL', 'd', { ...FINE, source: { name: 'a\0', perSecond: 1 } }, String.raw`\u0000`],
    ['a rate without end', 'd', { ...FINE, source: { name: 's', perSecond: 1e300 } }, 'perSecond is 1e+300'],
    ['a huge burst', 'd', { ...FINE, source: { name: 's', perSecond: 1, burst: 1e300 } }, 'burst is 1e+300'],
    ['a name without end', 'd'.repeat(101), FINE, 'its name'],
    [
      'a mistyped field',
      'd',
      { ...FINE, concurency: 4 },
      'unknown field concurency (did you mean concurrency?)',
    ],
    [
      'a mistyped field of its source',
      'd',
      { ...FINE, source: { name: 's', perSecond: 1, brust: 2 } },
      'unknown field of source brust (did you mean burst?)',
    ],
    [
      'a mistyped field of its retry policy',
      'd',
      { ...FINE, retry: { maxAttempt: 2 } },
      'unknown field of retry maxAttempt (did you mean maxAttempts?)',
    ],
    ['no definition', 'd', undefined, 'its definition is undefined'],
  ])('with %s is refused, and the message says what is wrong', (_, name, definition, message) => {
    // What a program without types may hand over.
    const given = definition as typeof FINE
    expect(() => createSync().define(name, given)).toThrow(
      expect.objectContaining({
        code: 'SETTING_INVALID',
        message: expect.stringContaining(message) as unknown,
      }),
    )
  })

  it('with a retry policy that cannot work is refused when the runner is made', () => {
    const sync = createSync()
    sync.define('d', { ...FINE, retry: { factor: 0 } })
    expect(() => sync.runner()).toThrow('retry.factor is 0')
  })

  it('unknown options of createSync and of the runner are refused with the name that was meant', () => {
    const create: (options: object) => unknown = createSync
    expect(() => create({ shema: 'x' })).toThrow('unknown option shema (did you mean schema?)')
    const sync = createSync()
    sync.define('d', FINE)
    const runner = (options: object): unknown => sync.runner(options)
    expect(() => runner({ checkEvery: 5 })).toThrow('unknown option checkEvery (did you mean checkEveryMs?)')
    expect(() => runner({ chunks: { concurency: 5 } })).toThrow(
      'The options of sync.runner, chunks: unknown option concurency (did you mean concurrency?)',
    )
    expect(() => runner({ jobs: { leaseMS: 5 } })).toThrow('unknown option leaseMS (did you mean leaseMs?)')
    expect(() => runner({ retention: { completeMs: 5 } })).toThrow('did you mean completedMs?')
  })

  it('with a name that is already defined is refused, and so is a runner without definitions', () => {
    const sync = createSync()
    expect(() => sync.runner()).toThrow('no sync is defined')
    sync.define('d', FINE)
    expect(() => sync.define('d', FINE)).toThrow('The sync d is defined already')
    expect(sync.runner()).toHaveLength(2)
  })
})

describe('a job', () => {
  it.each([
    ['matrixId', { matrixId: '' }],
    ['matrixId', { matrixId: 7 }],
    ['matrixId', {}],
    ['priority', { matrixId: 'm', priority: 1e300 }],
    ['priority', { matrixId: 'm', priority: 10n ** 30n }],
    ['freshForMs', { matrixId: 'm', freshForMs: 1e300 }],
    ['freshForMs', { matrixId: 'm', freshForMs: Number.POSITIVE_INFINITY }],
    ['priority', { matrixId: 'm', priority: 1.5 }],
    ['priority', { matrixId: 'm', priority: 2 ** 31 }],
    ['freshForMs', { matrixId: 'm', freshForMs: -1 }],
    ['freshForMs', { matrixId: 'm', freshForMs: Number.NaN }],
    ['params', { matrixId: 'm', params: () => 1 }],
    ['force', { matrixId: 'm', force: 'yes' }],
  ])('whose %s is wrong is not written: %o', async (field, job) => {
    // What a program without types may hand over.
    await expect(createSync().enqueue(db, 'd', job as NewJob)).rejects.toMatchObject({
      code: 'REQUEST_INVALID',
      message: expect.stringContaining(`${field} is`) as unknown,
    })
    expect(await syncJobs(db)).toEqual([])
  })

  it.each([
    [{ matrixId: 'nul\0' }, String.raw`matrixId contains the character \u0000`],
    [{ matrixId: 'half \ud83d' }, 'matrixId contains half a surrogate pair'],
    [{ matrixId: 'é'.repeat(501) }, 'and has 1002 bytes, but can have at most 1000'],
    [{ params: { a: ['\0'] } }, String.raw`params.a[0] contains the character \u0000`],
    [{ params: { a: '\udc00' } }, 'params.a contains half a surrogate pair'],
    [{ params: { 'a\0': 1 } }, 'params contains a key with'],
    [{ params: { a: Number.POSITIVE_INFINITY } }, 'params.a is Infinity, which is not JSON'],
    [{ params: { a: 10n ** 40n } }, 'params.a is a BigInt, which is not JSON'],
    [{ params: 'x'.repeat(300_000) }, 'and has 300002 bytes, but can have at most 262144'],
    [{ prority: 7 }, 'unknown field prority (did you mean priority?)'],
  ])(
    'that PostgreSQL could not store is refused by our error, short, and the transaction goes on: %#',
    async (part, message) => {
      await db.transaction(async (tx) => {
        const refused = await createSync()
          .enqueue(tx, 'd', { matrixId: 'm', ...part })
          .catch((error: unknown) => error)
        expect(refused).toMatchObject({
          code: 'REQUEST_INVALID',
          message: expect.stringContaining(message) as unknown,
          remedy: expect.any(String) as unknown,
        })
        expect(String(refused).length).toBeLessThan(600)
        await tx.query({ text: 'select 1' })
      })
      expect(await syncJobs(db)).toEqual([])
    },
  )

  it.each([
    ['d'.repeat(101), 'definition is'],
    ['d\0', 'definition contains'],
  ])('of a definition that cannot exist is refused: %#', async (name, message) => {
    await expect(createSync().enqueue(db, name, { matrixId: 'm' })).rejects.toThrow(message)
    expect(await syncJobs(db)).toEqual([])
  })

  it('with the longest names and the largest numbers is written', async () => {
    const job = { matrixId: 'é'.repeat(500), priority: -(2 ** 31 - 1), params: { huge: 1e308, tiny: 5e-324 } }
    const { created } = await createSync().enqueue(db, 'd'.repeat(100), { ...job, freshForMs: 3e12 })
    expect(created).toBe(true)
    expect(await syncJobs(db)).toMatchObject([{ matrix_id: job.matrixId, params: job.params }])
  })

  it('is written in the caller’s transaction, or not at all', async () => {
    const failed = db.transaction(async (tx) => {
      await createSync().enqueue(tx, 'd', { matrixId: 'm' })
      throw new Error('never mind')
    })
    await expect(failed).rejects.toThrow('never mind')
    expect(await syncJobs(db)).toEqual([])
  })
})

describe('the hash of a query', () => {
  it('is the same whatever the order of its fields, and differs for another query', () => {
    const hash = chunkHash('tempo', { year: 2024, where: { county: 'Alba', ages: [1, 2] } })
    expect(chunkHash('tempo', { where: { ages: [1, 2], county: 'Alba' }, year: 2024 })).toBe(hash)
    expect(hash).toMatch(/^[0-9a-f]{64}$/)
    const others = [
      { year: 2024, where: { county: 'Alba', ages: [2, 1] } },
      { year: '2024', where: { county: 'Alba', ages: [1, 2] } },
      { year: 2024, where: { county: 'Alba', ages: [1, 2] }, more: null },
    ]
    expect(chunkHash('other', { year: 2024, where: { county: 'Alba', ages: [1, 2] } })).not.toBe(hash)
    expect(new Set([hash, ...others.map((query) => chunkHash('tempo', query))]).size).toBe(4)
  })

  it('ignores what JSON does not represent', () => {
    expect(chunkHash('tempo', { a: 1, b: undefined })).toBe(chunkHash('tempo', { a: 1 }))
    expect(chunkHash('tempo', { at: new Date(0) })).toBe(
      chunkHash('tempo', { at: '1970-01-01T00:00:00.000Z' }),
    )
  })
})
