/** How what a plan yields becomes chunks: hashed, positioned and gathered into batches. */
import { createHash } from 'node:crypto'
import { inspect } from 'node:util'
import { payloadText } from '../messages/json.ts'
import { unstorableText } from '../unstorable-text.ts'
import { describeValue } from '../messages/validate.ts'
import { PermanentError } from '../worker/completion/outcome.ts'
import type { SyncDefinition } from './definition.ts'
import type { PlannedChunk } from './sql.ts'

/** How many chunks are written together at most, and how long the first of them waits for others. */
const PLAN_BATCH = { maxItems: 500, waitMs: 100 }

/**
 * The chunks of a plan, in batches. What a definition returns may be anything: a mistake is a `PermanentError`, because the
 * same plan would make it again.
 */
export async function* plannedChunks(
  name: string,
  definition: SyncDefinition,
  planned: Iterable<unknown> | AsyncIterable<unknown>,
): AsyncGenerator<readonly PlannedChunk[], void, undefined> {
  refuseNotIterable(planned)
  let position = 0
  for await (const queries of inBatches(planned, PLAN_BATCH)) {
    /** By hash: queries of the same hash are one chunk. */
    const chunks = new Map<string, PlannedChunk>()
    for (const query of queries) {
      const text = queryText(query)
      const hash = hashOf(name, definition, query)
      chunks.set(hash, { hash, query: text, position })
      position += 1
    }
    yield [...chunks.values()]
  }
}

function refuseNotIterable(planned: unknown): void {
  const isIterable =
    typeof planned === 'object' &&
    planned !== null &&
    (Symbol.iterator in planned || Symbol.asyncIterator in planned)
  if (isIterable) return
  throw new PermanentError(`plan returned ${inspect(planned, { depth: 0 })}, but must return or yield chunks`)
}

/** A query is stored with its chunk and shown to operators: what is larger belongs elsewhere. */
const MAX_QUERY_BYTES = 65_536
/** The limit of the table: a longer hash does not fit into an index. */
const MAX_HASH_BYTES = 500

function queryText(query: unknown): string {
  if (query === undefined)
    throw new PermanentError('plan yielded undefined, but must yield the query of a chunk')
  const text = payloadText(query, 'query')
  if ('problem' in text) throw new PermanentError(`plan yielded ${describeValue(query)}, but ${text.problem}`)
  const bytes = Buffer.byteLength(text.text)
  if (bytes <= MAX_QUERY_BYTES) return text.text
  throw new PermanentError(
    `plan yielded ${describeValue(text.text)} of ${bytes} bytes, but a query can have at most ${MAX_QUERY_BYTES}`,
  )
}

function hashOf(name: string, definition: SyncDefinition, query: unknown): string {
  if (definition.hash === undefined) return chunkHash(name, query)
  const hash: unknown = definition.hash(query)
  const isText = typeof hash === 'string' && hash !== '' && unstorableText(hash) === undefined
  if (isText && Buffer.byteLength(hash) <= MAX_HASH_BYTES) return hash
  throw new PermanentError(
    String.raw`hash of ${name} returned ${describeValue(hash)}, but must return a text that is not empty, has at most ${MAX_HASH_BYTES} bytes, and contains neither \u0000 nor half a surrogate pair`,
  )
}

/**
 * The hash of a chunk unless its definition has its own. The order of the keys in the query does not matter; the name of
 * the definition is part of it.
 */
export function chunkHash(definition: string, query: unknown): string {
  return createHash('sha256')
    .update(`${definition}\0`)
    .update(canonicalJson(JSON.parse(JSON.stringify(query))))
    .digest('hex')
}

function canonicalJson(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join(',')}]`
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  const fields = Object.entries(value).toSorted(([a], [b]) => (a < b ? -1 : 1))
  return `{${fields.map(([name, field]) => `${JSON.stringify(name)}:${canonicalJson(field)}`).join(',')}}`
}

/**
 * The items of a stream in batches: full ones while it yields quickly, and whatever there is `waitMs` after the first item,
 * so that chunks can be synced while a slow plan goes on.
 */
export async function* inBatches<Item>(
  items: Iterable<Item> | AsyncIterable<Item>,
  { maxItems, waitMs }: { readonly maxItems: number; readonly waitMs: number },
): AsyncGenerator<Item[], void, undefined> {
  const stream = streamOf(items)
  let next: Promise<IteratorResult<Item, void>> | undefined
  try {
    for (;;) {
      const batch: Item[] = []
      const timeout = startableTimeout(waitMs)
      try {
        while (batch.length < maxItems) {
          next ??= stream.next()
          // The first item is awaited however long it takes, the others until the timeout.
          const result = await (batch.length === 0 ? next : Promise.race([next, timeout.expired]))
          if (result === undefined) break
          next = undefined
          if (result.done === true) {
            if (batch.length > 0) yield batch
            return
          }
          if (batch.length === 0) timeout.start()
          batch.push(result.value)
        }
      } finally {
        timeout.cancel()
      }
      yield batch
    }
  } finally {
    // A stream that is still computing its next item is told to end and not awaited: it may never answer.
    const ended = stream.return()
    if (next === undefined) await ended
    else void Promise.allSettled([next, ended])
  }
}

async function* streamOf<Item>(
  items: Iterable<Item> | AsyncIterable<Item>,
): AsyncGenerator<Item, void, undefined> {
  yield* items
}

interface StartableTimeout {
  readonly expired: Promise<undefined>
  start(): void
  cancel(): void
}

function startableTimeout(ms: number): StartableTimeout {
  let timer: NodeJS.Timeout | undefined
  let expire: () => void = () => undefined
  const expired = new Promise<undefined>((resolve) => {
    expire = () => resolve(undefined)
  })
  return {
    expired,
    start() {
      timer = setTimeout(expire, ms)
    },
    cancel: () => clearTimeout(timer),
  }
}
