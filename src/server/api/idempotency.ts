/**
 * A POST with an Idempotency-Key is executed once. Its answer is stored in the transaction of its change, so that neither
 * is there without the other. Answers are kept for a day.
 */
import { createHash } from 'node:crypto'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { IdempotencyConflict, RequestProblem } from './problem.ts'

export interface IdempotentRequest {
  readonly schema: string
  readonly principal: string
  readonly key: string
  readonly hash: Buffer
}

export interface StoredAnswer {
  readonly status: number
  readonly answer: unknown
}

const MAX_KEY_CHARACTERS = 255

/** Visible ASCII, as HTTP permits it in a header. */
const KEY = /^[\x21-\x7e]+$/

export function checkIdempotencyKey(key: string): void {
  if (key.length <= MAX_KEY_CHARACTERS && KEY.test(key)) return
  throw new RequestProblem([
    {
      field: 'header.idempotency-key',
      detail: `must have 1 to ${MAX_KEY_CHARACTERS} visible ASCII characters`,
    },
  ])
}

export function requestHash(method: string, path: string, body: string): Buffer {
  return createHash('sha256').update(`${method} ${path}\n${body}`).digest()
}

/**
 * The answer to the same request before. Until the transaction ends, a second request with the same key is refused: it does
 * not wait, because its client would time out and send it once more.
 */
export async function findAnswer(
  tx: Queryable,
  { schema, principal, key, hash }: IdempotentRequest,
): Promise<StoredAnswer | undefined> {
  const { rows: locks } = await tx.query<{ locked: boolean }>({
    text: 'select pg_try_advisory_xact_lock(hashtextextended($1, 0)) as locked',
    values: [`leasehold request ${schema} ${principal} ${key}`],
  })
  if (locks[0]?.locked !== true)
    throw new IdempotencyConflict(
      'inProgress',
      'A request with the same Idempotency-Key is in progress.',
      'Send it once more a little later, with the same key.',
    )
  const { rows } = await tx.query<StoredAnswer & { readonly hash: Buffer }>({
    text: `select request_hash as hash, status, answer from ${requestsOf(schema)} where principal = $1 and idempotency_key = $2
  and created_at > now() - interval '1 day'`,
    values: [principal, key],
  })
  const [row] = rows
  if (row === undefined) return undefined
  if (row.hash.equals(hash)) return { status: row.status, answer: row.answer }
  throw new IdempotencyConflict(
    'reused',
    `The Idempotency-Key ${JSON.stringify(key)} was used for another request.`,
    'Give every request a key of its own, and repeat a request unchanged.',
  )
}

export async function storeAnswer(
  tx: Queryable,
  { schema, principal, key, hash }: IdempotentRequest,
  { status, answer }: StoredAnswer,
): Promise<void> {
  await tx.query({
    text: `insert into ${requestsOf(schema)} (principal, idempotency_key, request_hash, status, answer) values ($1, $2, $3, $4, $5)
on conflict (principal, idempotency_key) do update
set request_hash = excluded.request_hash, status = excluded.status, answer = excluded.answer, created_at = now()`,
    values: [principal, key, hash, status, JSON.stringify(answer ?? null)],
  })
}

/** Removes answers that are older than a day. */
export async function forgetAnswers(db: Queryable, schema: string): Promise<void> {
  await db.query({ text: `delete from ${requestsOf(schema)} where created_at < now() - interval '1 day'` })
}

function requestsOf(schema: string): string {
  return quoteQualified(schema, 'api_requests')
}
