/**
 * Batches of leases that a statement ends or renews: what is sent, and what became of each lease. A statement reports the
 * rows that it has changed. Of the others a second one, which is sent only then, tells which are still ours: those were
 * locked by another session. What is neither has been fenced off.
 */
import type { Queryable, Statement } from '../postgres/queryable.ts'
import { inHalves, isDataError } from './data-errors.ts'
import type { Lease } from './lease.ts'
import type { AnswerRow, StatementRunner, Values } from './runner.ts'
import type { BatchStatements } from './settle.ts'

/** What became of the leases of a batch. */
export interface Ended {
  readonly ended: readonly Lease[]
  /** Their rows are unchanged: the token is no longer current. */
  readonly fencedOff: readonly Lease[]
  /** Still ours, but locked by another session: try again. */
  readonly busy: readonly Lease[]
  /** Still ours, but a data error stops this outcome: trying again would bring the same. */
  readonly refused: readonly { readonly lease: Lease; readonly error: unknown }[]
  /** Of the busy ones: their settlement failed with this error, and may have been written if it only got no answer. */
  readonly unanswered?: { readonly leases: readonly Lease[]; readonly error: unknown }
}

/** The leases of one bucket, which one statement concerns. */
export interface Batch {
  readonly statements: BatchStatements
  readonly bucket: number | undefined
  /** As they were given; a lease may be among them twice. */
  readonly leases: readonly Lease[]
  /**
   * Of two leases on one row only the one with the higher token can be current, so only that one is asked about, and a
   * lease that is in the batch twice is asked about once.
   */
  readonly asked: readonly Lease[]
  readonly valuesOf: (part: readonly Lease[]) => Values
}

export class LeaseBatches {
  readonly #runner: StatementRunner
  readonly #bucket: number | 'all'

  constructor(runner: StatementRunner, bucket: number | 'all') {
    this.#runner = runner
    this.#bucket = bucket
  }

  /** One batch for each bucket of these leases. */
  of(
    statements: BatchStatements,
    leases: readonly Lease[],
    valuesOf: Batch['valuesOf'] = () => ({}),
  ): Batch[] {
    const parts = new Map<number | undefined, Lease[]>()
    for (const lease of leases) {
      const bucket = this.#bucket === 'all' ? lease.bucket : this.#bucket
      const part = parts.get(bucket)
      if (part === undefined) parts.set(bucket, [lease])
      else part.push(lease)
    }
    return [...parts].map(([bucket, part]) => ({
      statements,
      bucket,
      leases: part,
      asked: newestOfEachRow(part),
      valuesOf,
    }))
  }

  bind({ statements, bucket, asked, valuesOf }: Batch, part = asked): Statement {
    const values = { bucket, ...this.#runner.leaseArrays(part), ...valuesOf(part) }
    return this.#runner.bind(statements.change, values)
  }

  /** All of them together or, where a data error stops one, as many rows as possible. */
  async send(batches: readonly Batch[]): Promise<Ended[]> {
    const together = this.#runner.isDistributed ? batches.map((batch) => [batch]) : [batches]
    const ended: Ended[] = []
    for (const part of together) {
      if (part.length === 0) continue
      try {
        const answers = await this.#runner.send(part.map((batch) => this.bind(batch)))
        for (const [i, batch] of part.entries()) ended.push(await this.sort(batch, answers[i] ?? []))
      } catch (error) {
        if (!isDataError(error)) throw error
        for (const batch of part) ended.push(await this.#sendInHalves(batch))
      }
    }
    return ended
  }

  /** In the caller's own transaction, which is over after an error. */
  async sendIn(tx: Queryable, batches: readonly Batch[]): Promise<Ended[]> {
    const ended: Ended[] = []
    for (const batch of batches) {
      const { statements, bucket, asked, valuesOf } = batch
      const values = { bucket, ...this.#runner.leaseArrays(asked), ...valuesOf(asked) }
      ended.push(await this.sort(batch, await this.#runner.run(statements.change, values, { tx }), { tx }))
    }
    return ended
  }

  async #sendInHalves(batch: Batch): Promise<Ended> {
    const refused: { lease: Lease; error: unknown }[] = []
    const changed = await inHalves(
      batch.asked,
      async (part) => (await this.#runner.send([this.bind(batch, part)]))[0] ?? [],
      (lease, error) => refused.push({ lease, error }),
    )
    return this.sort(batch, changed.flat(), { refused })
  }

  /** Sorts the leases of a batch by the rows that the statement has changed. */
  async sort(
    batch: Batch,
    changed: readonly AnswerRow[],
    { refused = [], tx }: { readonly refused?: Ended['refused']; readonly tx?: Queryable } = {},
  ): Promise<Ended> {
    const { leases, asked } = batch
    const ids = new Set(changed.map(([id]) => String(id)))
    if (ids.size === leases.length) return { ended: leases, fencedOff: [], busy: [], refused }
    const wasRefused = new Set(refused.map(({ lease }) => lease))
    const others = asked.filter((lease) => !ids.has(lease.id) && !wasRefused.has(lease))
    let busyIds = new Set<string>()
    let unanswered: Ended['unanswered']
    try {
      busyIds = await this.#stillHeld(batch, others, tx)
    } catch (error) {
      // What was settled must not be lost to a connection that breaks now; of these the next attempt tells more.
      if (tx !== undefined) throw error
      busyIds = new Set(others.map(({ id }) => id))
      unanswered = { leases: others, error }
    }
    const tokens = new Map(asked.map(({ id, token }) => [id, token]))
    const isAsked = ({ id, token }: Lease): boolean => tokens.get(id) === token
    const ended = leases.filter((lease) => ids.has(lease.id) && isAsked(lease))
    const busy = leases.filter((lease) => busyIds.has(lease.id) && isAsked(lease))
    const known = new Set([...ended, ...busy])
    const fencedOff = leases.filter((lease) => !known.has(lease) && !wasRefused.has(lease))
    return { ended, fencedOff, busy, refused, ...(unanswered === undefined ? {} : { unanswered }) }
  }

  async #stillHeld(
    { statements, bucket, valuesOf }: Batch,
    leases: readonly Lease[],
    tx: Queryable | undefined,
  ): Promise<Set<string>> {
    if (leases.length === 0) return new Set()
    const values = { bucket, ...this.#runner.leaseArrays(leases), ...valuesOf(leases) }
    const rows = await this.#runner.run(statements.held, values, { tx })
    return new Set(rows.map(([id]) => String(id)))
  }
}

/** Several answers as one. */
export function joined(parts: readonly Ended[]): Ended {
  const [only] = parts
  if (only !== undefined && parts.length === 1) return only
  const unanswered = parts.flatMap((part) => part.unanswered ?? [])
  const [first] = unanswered
  return {
    ended: parts.flatMap((part) => part.ended),
    fencedOff: parts.flatMap((part) => part.fencedOff),
    busy: parts.flatMap((part) => part.busy),
    refused: parts.flatMap((part) => part.refused),
    ...(first === undefined
      ? {}
      : { unanswered: { leases: unanswered.flatMap(({ leases }) => leases), error: first.error } }),
  }
}

function newestOfEachRow(leases: readonly Lease[]): readonly Lease[] {
  const newest = new Map<string, Lease>()
  for (const lease of leases) {
    const other = newest.get(lease.id)
    if (other === undefined || other.token < lease.token) newest.set(lease.id, lease)
  }
  return newest.size === leases.length ? leases : [...newest.values()]
}
