/** What the functions of a definition gave back: wrong however often it is asked, so a mistake ends the row. */
import { inspect } from 'node:util'
import { done, type Outcome, PermanentError } from '../worker/completion/outcome.ts'
import { chunkHash } from './chunk-hash.ts'
import type { SyncDefinition, Synced } from './definition.ts'

export function iterableOf<Query>(
  chunks: Iterable<Query> | AsyncIterable<Query>,
): Iterable<Query> | AsyncIterable<Query> {
  const given: unknown = chunks
  const isIterable =
    typeof given === 'object' && given !== null && (Symbol.iterator in given || Symbol.asyncIterator in given)
  if (isIterable) return chunks
  throw new PermanentError(`plan returned ${inspect(given, { depth: 0 })}, but must return or yield chunks`)
}

export function hashOf(definition: SyncDefinition, name: string, query: unknown): string {
  if (query === undefined)
    throw new PermanentError('plan yielded undefined, but must yield the query of a chunk')
  if (definition.hash === undefined) return chunkHash(name, query)
  const hash: unknown = definition.hash(query)
  if (typeof hash === 'string' && hash !== '') return hash
  throw new PermanentError(
    `hash of ${name} returned ${inspect(hash, { depth: 0 })}, but must return a text that is not empty`,
  )
}

export function doneWith(synced: Synced | void): Outcome {
  const given: unknown = synced
  if (given !== undefined && (typeof given !== 'object' || given === null || !('rows' in given)))
    throw new PermanentError(
      `syncChunk returned ${inspect(given, { depth: 0 })}, but must return { rows }, or settle itself`,
    )
  const rows = synced?.rows ?? 0
  if (Number.isSafeInteger(rows) && rows >= 0) return done({ rows })
  throw new PermanentError(
    `syncChunk brought ${rows} rows, but must return { rows } with a whole number from 0`,
  )
}
