/** What is refused before it can do harm: definitions, jobs, and queries that have no hash. */
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { emptySync, syncJobs } from '../../test/support/sync-rows.ts'
import { openDatabase } from '../postgres/database.ts'
import { chunkHash } from './plan.ts'
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
    ['a field that it does not have', 'd', { ...FINE, concurency: 4 }, 'it has no concurency'],
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
    ['matrixId', { matrixId: 'nul\0' }],
    ['priority', { matrixId: 'm', priority: 1.5 }],
    ['priority', { matrixId: 'm', priority: 2 ** 31 }],
    ['freshForMs', { matrixId: 'm', freshForMs: -1 }],
    ['freshForMs', { matrixId: 'm', freshForMs: Number.NaN }],
    ['params', { matrixId: 'm', params: () => 1 }],
    ['force', { matrixId: 'm', force: 'yes' as unknown as boolean }],
  ])('whose %s is wrong is not written: %o', async (field, job) => {
    await expect(createSync().enqueue(db, 'd', job)).rejects.toMatchObject({
      code: 'REQUEST_INVALID',
      message: expect.stringContaining(`${field} is`) as unknown,
    })
    expect(await syncJobs(db)).toEqual([])
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
