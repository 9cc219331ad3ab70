import { createHash } from 'node:crypto'
import { expect, it } from 'vitest'
import type { Result } from '../../postgres/queryable.ts'
import { knownTokens } from './known-tokens.ts'

const hashOf = (token: string): string => createHash('sha256').update(token).digest('hex')

/** A database with these hashes, newest first, that answers as many as are asked for. */
function databaseWith(hashes: readonly string[]): Parameters<typeof knownTokens>[0] {
  return {
    query: async <Row extends object>({ text }: { readonly text: string }) => {
      const limit = Number(/limit (\d+)/.exec(text)?.[1])
      const rows: readonly object[] = hashes.slice(0, limit).map((hash) => ({ hash }))
      return Promise.resolve({ rows, rowCount: rows.length } as Result<Row>)
    },
  }
}

it('tells a token that exists from one that does not', async () => {
  const isKnown = knownTokens(databaseWith([hashOf('lhs_right')]), 'leasehold')
  expect(await isKnown('lhs_right')).toBe(true)
  expect(await isKnown('lhs_wrong')).toBe(false)
  expect(await isKnown('other')).toBe(false)
})

it('where there are more tokens than it reads, it takes none for wrong', async () => {
  const others = Array.from({ length: 10_000 }, (_, n) => hashOf(`lhs_${n}`))
  const isKnown = knownTokens(databaseWith([...others, hashOf('lhs_oldest')]), 'leasehold')
  expect(await isKnown('lhs_oldest')).toBe(true)
})
