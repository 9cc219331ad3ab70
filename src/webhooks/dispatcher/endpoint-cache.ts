/** The enabled endpoints, as a dispatcher needs them: read from the database when they change, and decrypted. */
import type { Clock } from '../../clock.ts'
import { LeaseholdError, messageOf } from '../../errors.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { MAX_TIMEOUT_MS } from '../endpoints/check.ts'
import { decryptHeaders } from '../endpoints/secrets.ts'
import { decrypt, type SecretKeys } from '../signing/encryption.ts'
import { type Signer, signer } from '../signing/sign.ts'
import {
  type DispatcherRow,
  type EndpointRow,
  type EndpointStateRow,
  readEndpoints,
  readStates,
  readVersions,
} from './endpoint-cache-sql.ts'

export interface CachedEndpoint {
  readonly id: string
  readonly url: string
  readonly headers: Readonly<Record<string, string>>
  readonly ratePerSecond: number | undefined
  readonly concurrency: number
  readonly timeoutMs: number
  /** The signer of the current secret and, for a while after a rotation, of the previous one. */
  signers(now: number): readonly Signer[]
}

export interface EndpointState extends Omit<EndpointStateRow, 'kind'> {
  /** Undefined if the endpoint cannot be used: its secret or headers cannot be decrypted, or its limits are invalid. */
  readonly endpoint: CachedEndpoint | undefined
}

interface Entry {
  readonly version: string
  readonly endpoint: CachedEndpoint | undefined
}

interface Check {
  readonly ids: Set<string>
  readonly entries: Promise<ReadonlyMap<string, Entry>>
}

export interface EndpointCacheOptions {
  readonly db: Queryable
  readonly schema: string
  /** The role of dispatchers in the registry. */
  readonly role: string
  readonly keys: () => SecretKeys
  readonly clock: Clock
  /** Called once for each version of an endpoint that cannot be used, or whose previous secret cannot be. */
  readonly onUnusable: (id: string, error: unknown) => void
}

export class EndpointCache {
  readonly #options: EndpointCacheOptions
  #entries: ReadonlyMap<string, Entry> = new Map()
  /** The check that has not been sent yet. */
  #nextCheck: Check | undefined
  /** Resolves when the check that was sent last has ended. */
  #lastCheck: Promise<unknown> = Promise.resolve()

  constructor(options: EndpointCacheOptions) {
    this.#options = options
  }

  /** Throws if the database role may not read endpoints whole. Reads none. */
  async checkPermission(): Promise<void> {
    const { db, schema } = this.#options
    await db.query(readEndpoints(schema, []))
  }

  /**
   * The endpoint as it is now, which may be newer than the last refresh; undefined if it is disabled, deleted or unusable.
   * A delivery that was sent after a rotation has committed must be signed with the new secret, and a refresh may come too
   * late for it. One statement checks the versions of all endpoints that were asked for while the one before it ran.
   */
  async current(id: string): Promise<CachedEndpoint | undefined> {
    this.#nextCheck ??= this.#newCheck()
    this.#nextCheck.ids.add(id)
    const entries = await this.#nextCheck.entries
    return entries.get(id)?.endpoint
  }

  #newCheck(): Check {
    const ids = new Set<string>()
    const entries = this.#lastCheck.then(async () => {
      // Whoever asks from now on may know of a later change, and waits for another check.
      this.#nextCheck = undefined
      return this.#check([...ids])
    })
    this.#lastCheck = entries.catch(() => undefined)
    return { ids, entries }
  }

  async #check(ids: readonly string[]): Promise<ReadonlyMap<string, Entry>> {
    const { db, schema } = this.#options
    const { rows } = await db.query<Pick<EndpointRow, 'id' | 'version'>>(readVersions(schema, ids))
    const known = new Map(
      rows.flatMap(({ id, version }) => {
        const entry = this.#entries.get(id)
        return entry?.version === version ? [[id, entry]] : []
      }),
    )
    const changed = rows.map(({ id }) => id).filter((id) => !known.has(id))
    if (changed.length === 0) return known
    const read = await this.#read(changed)
    this.#entries = new Map([...this.#entries, ...read])
    return new Map([...known, ...read])
  }

  /**
   * Reads the state of all enabled endpoints, and the rest of those that have changed. With it, in the same statement, come
   * the ids of the processes with a dispatcher, in order: they share the limits of the endpoints.
   */
  async refresh(): Promise<{
    readonly endpoints: readonly EndpointState[]
    readonly dispatchers: readonly string[]
  }> {
    const { db, schema, role } = this.#options
    const states = (await db.query<EndpointStateRow | DispatcherRow>(readStates(schema, role))).rows
    const rows = states.filter((row) => row.kind === 'endpoint')
    const changed = rows.filter(({ id, version }) => this.#entries.get(id)?.version !== version)
    const read = await this.#read(changed.map(({ id }) => id))
    this.#entries = new Map(
      rows.flatMap(({ id }) => {
        const entry = read.get(id) ?? this.#entries.get(id)
        return entry === undefined ? [] : [[id, entry]]
      }),
    )
    return {
      endpoints: rows.map((row) => ({ ...row, endpoint: this.#entries.get(row.id)?.endpoint })),
      dispatchers: states.filter(({ kind }) => kind === 'dispatcher').map(({ id }) => id),
    }
  }

  async #read(ids: readonly string[]): Promise<ReadonlyMap<string, Entry>> {
    if (ids.length === 0) return new Map()
    const { db, schema } = this.#options
    const { rows } = await db.query<EndpointRow>(readEndpoints(schema, ids))
    return new Map(rows.map((row) => [row.id, { version: row.version, endpoint: this.#parse(row) }]))
  }

  /** One that cannot be read is left out: it must not keep deliveries from being made, and the current secret is enough. */
  #previousOf(row: EndpointRow): { readonly signer: Signer; readonly until: number } | undefined {
    const { keys, clock, onUnusable } = this.#options
    if (row.previous_secret === null || row.previous_for_ms === null) return undefined
    try {
      return {
        signer: signer(decrypt(keys(), row.previous_secret, row.id)),
        until: clock.monotonicNow() + row.previous_for_ms,
      }
    } catch (error) {
      onUnusable(
        row.id,
        new LeaseholdError(
          'SECRET_DAMAGED',
          `The previous secret of the endpoint ${row.id} cannot be read: ${messageOf(error)}`,
          { remedy: 'Its deliveries are signed with the current one alone.', cause: error },
        ),
      )
      return undefined
    }
  }

  #parse(row: EndpointRow): CachedEndpoint | undefined {
    const { keys, onUnusable } = this.#options
    try {
      refuseInvalidLimits(row)
      const current = signer(decrypt(keys(), row.secret, row.id))
      const previous = this.#previousOf(row)
      const both = previous === undefined ? [current] : [current, previous.signer]
      return {
        id: row.id,
        url: row.url,
        headers: decryptHeaders(keys(), row.id, row.headers),
        ratePerSecond: row.rate_per_second ?? undefined,
        concurrency: row.concurrency,
        timeoutMs: row.timeout_ms,
        signers: (now) => (previous !== undefined && now < previous.until ? both : [current]),
      }
    } catch (error) {
      onUnusable(row.id, error)
      return undefined
    }
  }
}

/**
 * The table refuses such values, but a row may be older than a constraint, or have been replicated without it. A rate of
 * NaN would make every sum that it is part of NaN, and stop the claims for all endpoints.
 */
function refuseInvalidLimits({
  id,
  rate_per_second: rate,
  concurrency,
  timeout_ms: timeoutMs,
}: EndpointRow): void {
  const problems = [
    ...(rate === null || (rate > 0 && Number.isFinite(rate))
      ? []
      : [`rate_per_second is ${rate}, but must be above 0 and finite, or null`]),
    ...(concurrency >= 1 ? [] : [`concurrency is ${concurrency}, but must be at least 1`]),
    ...(timeoutMs >= 1 && timeoutMs <= MAX_TIMEOUT_MS
      ? []
      : [`timeout_ms is ${timeoutMs}, but must be from 1 to ${MAX_TIMEOUT_MS}`]),
  ]
  if (problems.length === 0) return
  throw new LeaseholdError(
    'SETTING_INVALID',
    `The webhook endpoint ${id} cannot be used: ${problems.join('; ')}.`,
    {
      remedy: 'Correct it with `leasehold webhooks endpoints update`; until then its deliveries wait.',
    },
  )
}
