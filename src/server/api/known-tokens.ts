/** The keys, sessions and links that exist, by their hashes: a wrong token is told from a right one without asking for it. */
import { createHash } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { type Clock, systemClock } from '../../clock.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Queryable } from '../../postgres/queryable.ts'

/** The newest of a kind. */
const MAX_READ = 10_000
const MIN_INTERVAL_MS = 1_000

const IS_VALID = {
  api_keys: 'revoked_at is null and (expires_at is null or expires_at > now())',
  api_sessions: 'expires_at > now()',
  api_portal_links: 'expires_at > now()',
} as const

/** Whether a token exists, or may. */
export type IsKnownToken = (token: string) => Promise<boolean>

/** Each kind by itself: where one of the tables is locked, the others are still read. */
export function knownTokens(db: Queryable, schema: string, clock: Clock = systemClock): IsKnownToken {
  const listOf = (table: keyof typeof IS_VALID): TokenList =>
    new TokenList(
      db,
      `select encode(hash, 'hex') as hash from ${quoteQualified(schema, table)} where ${IS_VALID[table]} order by created_at desc limit ${MAX_READ}`,
      clock,
    )
  const lists = [
    ['lhk_', listOf('api_keys')],
    ['lhs_', listOf('api_sessions')],
    ['lhl_', listOf('api_portal_links')],
  ] as const
  return async (token) =>
    lists.find(([prefix]) => token.startsWith(prefix))?.[1].has(token) ?? Promise.resolve(false)
}

class TokenList {
  readonly #db: Queryable
  readonly #text: string
  readonly #clock: Clock
  #hashes: ReadonlySet<string> = new Set()
  #readAt = -Infinity
  /** The next reading, which has not begun. */
  #next: Promise<void> | undefined

  constructor(db: Queryable, text: string, clock: Clock) {
    this.#db = db
    this.#text = text
    this.#clock = clock
  }

  /** However many ask, the list is read once a second at most, and they wait for it. */
  async has(token: string): Promise<boolean> {
    const hash = createHash('sha256').update(token).digest('hex')
    if (this.#hashes.has(hash)) return true
    await (this.#next ??= this.#readSoon())
    // Of more than are read, the older ones are not known, and must not be refused: whoever has a key can make sessions.
    return this.#hashes.has(hash) || this.#hashes.size >= MAX_READ
  }

  async #readSoon(): Promise<void> {
    await delay(Math.max(0, this.#readAt + MIN_INTERVAL_MS - this.#clock.monotonicNow()))
    this.#readAt = this.#clock.monotonicNow()
    // Who asks from now on may have a token that this reading does not see.
    this.#next = undefined
    const { rows } = await this.#db.query<{ hash: string }>({ text: this.#text })
    this.#hashes = new Set(rows.map(({ hash }) => hash))
  }
}
