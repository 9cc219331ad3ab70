import type { Clock } from '../../clock.ts'
import { LeaseholdError } from '../../errors.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { LONGEST_TIMEOUT_MS } from '../endpoints/index.ts'
import { decrypt, type SecretKeys, type Signer, signer } from '../signing/index.ts'
import { details, dispatchers, type EndpointRow, survey, type SurveyRow } from './directory-sql.ts'
import { type Share, shareOf } from './share.ts'

/** An endpoint as the dispatcher needs it. */
export interface Endpoint {
  readonly id: string
  readonly url: string
  readonly headers: Readonly<Record<string, string>>
  readonly ratePerSecond: number | undefined
  readonly concurrency: number
  readonly timeoutMs: number
  /** Those of the current secret and, for a while after a rotation, of the one before. */
  signers(now: number): readonly Signer[]
}

export interface Surveyed extends SurveyRow {
  /** Absent when its secret cannot be read, or its limits make no sense. */
  readonly endpoint: Endpoint | undefined
}

interface Known {
  readonly version: string
  readonly endpoint: Endpoint | undefined
}

export interface DirectoryOptions {
  readonly db: Queryable
  readonly schema: string
  readonly role: string
  readonly worker: string
  readonly keys: () => SecretKeys
  readonly clock: Clock
  /** Called once for each version of an endpoint that cannot be used. */
  readonly onUnusable: (id: string, error: unknown) => void
}

/** Every endpoint that is enabled, read whenever one has changed. */
export class Directory {
  readonly #options: DirectoryOptions
  #known: ReadonlyMap<string, Known> = new Map()

  constructor(options: DirectoryOptions) {
    this.#options = options
  }

  get(id: string): Endpoint | undefined {
    return this.#known.get(id)?.endpoint
  }

  /** Its endpoints as they are now, and which share of them is ours. */
  async read(): Promise<{ readonly endpoints: readonly Surveyed[]; readonly share: Share }> {
    const { db, schema, role, worker } = this.#options
    const { rows } = await db.query<SurveyRow>(survey(schema))
    const others = await db.query<{ id: string }>(dispatchers(schema, role))
    const changed = rows.filter(({ id, version }) => this.#known.get(id)?.version !== version)
    const read = await this.#details(changed.map(({ id }) => id))
    this.#known = new Map(
      rows.flatMap(({ id }) => {
        const known = read.get(id) ?? this.#known.get(id)
        return known === undefined ? [] : [[id, known]]
      }),
    )
    return {
      endpoints: rows.map((row) => ({ ...row, endpoint: this.get(row.id) })),
      share: shareOf(
        worker,
        others.rows.map(({ id }) => id),
      ),
    }
  }

  async #details(ids: readonly string[]): Promise<ReadonlyMap<string, Known>> {
    if (ids.length === 0) return new Map()
    const { db, schema } = this.#options
    const { rows } = await db.query<EndpointRow>(details(schema, ids))
    return new Map(rows.map((row) => [row.id, { version: row.version, endpoint: this.#usable(row) }]))
  }

  #usable(row: EndpointRow): Endpoint | undefined {
    const { keys, clock, onUnusable } = this.#options
    try {
      refuseNonsense(row)
      const current = signer(decrypt(keys(), row.secret, row.id))
      const previous =
        row.previous_secret === null || row.previous_for_ms === null
          ? undefined
          : {
              signer: signer(decrypt(keys(), row.previous_secret, row.id)),
              until: clock.monotonicNow() + row.previous_for_ms,
            }
      const both = previous === undefined ? [current] : [current, previous.signer]
      return {
        id: row.id,
        url: row.url,
        headers: row.headers,
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
 * The table refuses such numbers, but a row may be older than a constraint, or have been replicated without it. One rate
 * that is NaN would make every sum it enters NaN, and stop the claims for all endpoints.
 */
function refuseNonsense({
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
    ...(timeoutMs >= 1 && timeoutMs <= LONGEST_TIMEOUT_MS
      ? []
      : [`timeout_ms is ${timeoutMs}, but must be from 1 to ${LONGEST_TIMEOUT_MS}`]),
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
