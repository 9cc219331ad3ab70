/**
 * What a worker sends in one round trip: settlements of finished rows, and the claims that are due, as one pipeline. Each
 * statement sees what the one before it did, and all are one transaction. If it fails, the settlements are sent by
 * themselves, and what a data error stops is halved down to the bad row.
 *
 * Where a table has buckets, a statement concerns one of them. One server holds them all, unless Citus distributes the
 * table: then each bucket gets a pipeline of its own, because a pipeline stays on one node.
 */
import type { Clock } from '../clock.ts'
import { BucketTurns } from './bucket-turns.ts'
import { type Claim, ClaimReader, type FoundRow, orderingKeyOf } from './claims.ts'
import {
  type DataErrorReport,
  ExcludedRows,
  inHalves,
  isDataError,
  isDeadlock,
  isUniqueViolation,
} from './data-errors.ts'
import { failedStatement } from '../postgres/pipeline.ts'
import { type Lease, trustedUntil } from './lease.ts'
import { type Batch, type Ended, joined, type LeaseBatches } from './lease-batches.ts'
import type { StatementRunner } from './runner.ts'
import { type ClaimRoom, type DueClaim, emptyHarvest, type Harvest, Scans } from './scans.ts'

export interface CycleOptions {
  readonly clock: Clock
  readonly random?: () => number
  readonly onDataError: (report: DataErrorReport) => void
  /** How many buckets there are; infinite where that is not known, and then those with rows are found. */
  readonly bucketCount: () => number
}

/** What is to be settled, one entry for each outcome; and what there is room for, if claims are to be sent. */
export interface CycleRequest {
  readonly settlements: readonly (readonly Batch[])[]
  readonly room?: ClaimRoom | undefined
}

export interface CycleAnswer<Row> {
  /** What became of each settlement. */
  readonly ended: readonly Ended[]
  readonly claim?: CycleClaim<Row>
  /** A node has failed, and others have not: its settlements are among those that are busy. */
  readonly failure?: unknown
}

export interface CycleClaim<Row> extends Claim<Row> {
  /** No row can be claimed at this moment, apart from those that `dueInMs` and `nextScanInMs` announce. */
  readonly drained: boolean
  /** How many of the rows are the next ones of keys of which rows were settled. */
  readonly continued: number
  /** When a scan from the start is affordable that may find rows before the cursor, or a bucket is looked at again. */
  readonly nextScanInMs?: number
}

/** What is sent together. */
interface Part<Row> {
  readonly batches: Batch[]
  readonly claims: { readonly due: DueClaim; readonly bucket: number | undefined }[]
  readonly harvest: Harvest<Row>
}

/** How often a pipeline may lose a race for an ordering key, one after the other, before that is taken for a data error. */
const MAX_RACES = 3

/** How many rows are claimed by their ids when one of them stops a claim. */
const MAX_ROWS_AROUND_CULPRIT = 50

export class LeaseCycle<Row extends object> {
  readonly #runner: StatementRunner
  readonly #batches: LeaseBatches
  readonly #options: CycleOptions
  readonly #reader: ClaimReader<Row>
  /** Rows that stopped a claim with a data error. */
  readonly #excluded: ExcludedRows
  readonly #scans = new Map<number | undefined, Scans<Row>>()
  readonly #buckets: BucketTurns | undefined
  #races = 0

  constructor(runner: StatementRunner, batches: LeaseBatches, bucket: number | 'all', options: CycleOptions) {
    this.#runner = runner
    this.#batches = batches
    this.#options = options
    this.#reader = new ClaimReader<Row>(runner.t, runner.owner)
    this.#excluded = new ExcludedRows(options.clock)
    if (bucket === 'all' && runner.statements.buckets !== undefined)
      this.#buckets = new BucketTurns(runner, runner.statements.buckets.waiting, options)
    else this.#scansOf(runner.table.bucket === undefined || bucket === 'all' ? undefined : bucket)
  }

  /** Something may have become claimable. */
  wake(): void {
    this.#buckets?.wake()
    for (const scans of this.#scans.values()) scans.wake()
  }

  /** The ordering keys of these rows may have become free, without a settlement by this cycle. */
  keysFreed(leases: readonly Lease[]): void {
    for (const lease of leases) {
      const key = orderingKeyOf(lease)
      if (key !== undefined) this.#scansOf(lease.bucket).continueKeys([key])
    }
  }

  async send({ settlements, room }: CycleRequest): Promise<CycleAnswer<Row>> {
    const { clock } = this.#options
    const batches = settlements.flat()
    const settled = batches.flatMap(({ asked }) => asked)
    // The claims of this pipeline see what it settles. Those of another one do not see it before its end.
    if (room !== undefined) this.keysFreed(settled)
    const harvest = emptyHarvest<Row>()
    const sentAt = clock.monotonicNow()
    const isScanning = room !== undefined && room.continueOnly !== true
    const scanned = isScanning ? await this.#bucketsToScan() : []
    const parts = this.#parts(batches, room, scanned, harvest)
    const { answers, failure } = await this.#sendAll(parts)
    const failed = failure === undefined ? {} : { failure }
    const tookMs = clock.monotonicNow() - sentAt
    const rows = harvest.rows.length + batches.reduce((sum, { asked }) => sum + asked.length, 0)
    for (const bucket of scanned) this.#scansOf(bucket).took(tookMs, rows, harvest)
    const ended = settlements.map((own) => joined(own.map((batch) => answers.get(batch) ?? NOTHING_ENDED)))
    if (room === undefined) {
      this.keysFreed(settled)
      return { ended, ...failed }
    }
    if (isScanning) return { ended, ...failed, claim: await this.#claimOf(room, scanned, harvest, sentAt) }
    const more = [...this.#scans.values()].some(({ continued }) => continued > 0)
    const claim = this.#claimed(room, harvest, { sentAt, more })
    return { ended, ...failed, claim: { ...claim, drained: false, continued: harvest.continued } }
  }

  /** A claim by itself, by one way after the other, until there is no more room. From the start. */
  async claimOnce(room: ClaimRoom, bucket: number | undefined): Promise<Claim<Row>> {
    const { clock } = this.#options
    const scans = new Scans<Row>(this.#runner, this.#reader, { bucket, clock, excluded: this.#excluded })
    const harvest = emptyHarvest<Row>()
    const sentAt = clock.monotonicNow()
    const left = (): ClaimRoom => ({
      ...room,
      rows: room.rows - harvest.rows.length,
      bytes: room.bytes - this.#reader.bytesOf(harvest.rows),
      groups: room.groups
        ?.map(({ group, room: most }) => ({
          group,
          room: most - harvest.rows.filter(({ row }) => this.#groupOf(row) === group).length,
        }))
        .filter((each) => each.room > 0),
    })
    const send = async (due: DueClaim | undefined): Promise<void> => {
      if (due !== undefined) await this.#sendAll([{ batches: [], claims: [{ due, bucket }], harvest }])
    }
    for (const way of scans.ways) {
      let { groups } = left()
      do {
        if (left().rows > 0 && left().bytes > 0) await send(scans.scan(way, { ...left(), groups }, harvest))
        // A walk from key to key that stopped on its way goes on.
        groups = groups?.filter(({ group }) => scans.isWalking(group))
      } while (harvest.rows.length === 0 && groups !== undefined && groups.length > 0)
    }
    if (left().rows > 0 && left().bytes > 0 && (room.suspects?.suspects ?? 0) > 0)
      await send(scans.claimSuspects(left(), left().rows, harvest))
    if (harvest.rows.length === 0) await send(scans.askNextDue(room, harvest))
    const more = harvest.isInterrupted || scans.ways.some((way) => scans.hasMore(way))
    const claim = this.#claimed(room, harvest, { sentAt, more })
    return { ...claim, claimed: claim.claimed.map(({ lease, row }) => ({ lease, row })) }
  }

  /** Claims these rows and no others. */
  async claimRows(
    ids: readonly string[],
    { leaseMs }: Pick<ClaimRoom, 'leaseMs'>,
    bucket: number | undefined,
  ): Promise<Claim<Row>> {
    const sentAt = this.#options.clock.monotonicNow()
    const harvest = emptyHarvest<Row>()
    harvest.rows.push(...(await this.#claimNamed(ids, leaseMs, bucket)))
    const claim = this.#claimed({ leaseMs }, harvest, { sentAt, more: false })
    return { ...claim, claimed: claim.claimed.map(({ lease, row }) => ({ lease, row })) }
  }

  #groupOf(row: Row): string {
    const { groups = '' } = this.#runner.table
    // The declaration returns this column with every row.
    return String(Reflect.get(row, groups))
  }

  /** In which buckets this cycle looks for rows. */
  async #bucketsToScan(): Promise<readonly (number | undefined)[]> {
    if (this.#buckets === undefined) return [...this.#scans.keys()]
    return this.#buckets.next()
  }

  #parts(
    batches: readonly Batch[],
    room: ClaimRoom | undefined,
    scanned: readonly (number | undefined)[],
    harvest: Harvest<Row>,
  ): Part<Row>[] {
    const parts = new Map<number | undefined, Part<Row>>()
    const partOf = (bucket: number | undefined): Part<Row> => {
      const place = this.#runner.isDistributed ? bucket : undefined
      const part = parts.get(place) ?? { batches: [], claims: [], harvest }
      parts.set(place, part)
      return part
    }
    for (const batch of batches) partOf(batch.bucket).batches.push(batch)
    if (room === undefined) return [...parts.values()]
    let rows = room.rows
    const add = (bucket: number | undefined, limit: number, due: (part: ClaimRoom) => DueClaim[]): void => {
      const bytes = Math.max(1, Math.floor((room.bytes * limit) / Math.max(1, room.rows)))
      for (const claim of due({ ...room, rows: limit, bytes }))
        partOf(bucket).claims.push({ due: claim, bucket })
      rows -= limit
    }
    // Of other buckets only the keys continue whose rows were settled.
    for (const [bucket, scans] of this.#scans) {
      const most = room.continueOnly === true || scanned.length === 0 ? rows : Math.floor(rows / 2)
      const keys = scanned.includes(bucket) ? 0 : Math.min(scans.continued, most)
      if (keys > 0) add(bucket, keys, (part) => scans.planContinued(part, harvest))
    }
    const each = [...scanned]
    each.forEach((bucket, i) => {
      const limit = Math.ceil(rows / (each.length - i))
      if (limit > 0) add(bucket, limit, (part) => this.#scansOf(bucket).plan(part, harvest))
    })
    return [...parts.values()]
  }

  /** Returns what became of each batch. One node that fails must not cost the others what they have written. */
  async #sendAll(
    parts: readonly Part<Row>[],
  ): Promise<{ readonly answers: ReadonlyMap<Batch, Ended>; readonly failure: unknown }> {
    const answers = new Map<Batch, Ended>()
    const failures: unknown[] = []
    const sent = parts.map(async ({ batches, ...part }) => {
      try {
        const ended = await this.#send({ batches, ...part })
        for (const [i, batch] of batches.entries()) answers.set(batch, ended[i] ?? NOTHING_ENDED)
      } catch (error) {
        failures.push(error)
        for (const batch of batches) {
          const { leases } = batch
          answers.set(batch, { ...NOTHING_ENDED, busy: leases, unanswered: { leases, error } })
        }
      }
    })
    await Promise.all(sent)
    const [failure] = failures
    if (failures.length > 0 && failures.length === parts.length) throw failure
    return { answers, failure }
  }

  async #send({ batches, claims, harvest }: Part<Row>): Promise<Ended[]> {
    let answers: Awaited<ReturnType<StatementRunner['send']>>
    const statements = [
      ...batches.map((batch) => this.#batches.bind(batch)),
      ...claims.map(({ due }) => due.statement),
    ]
    try {
      answers = await this.#runner.send(statements)
      this.#races = 0
    } catch (error) {
      for (const { due } of claims) due.failed()
      const isRace = isDeadlock(error) || (isUniqueViolation(error) && this.#races < MAX_RACES)
      if (!isRace && !isDataError(error)) throw error
      this.#races = isRace ? this.#races + 1 : 0
      harvest.isInterrupted ||= isRace && claims.length > 0
      const failed = (failedStatement(error) ?? 0) - batches.length
      const ended = await this.#batches.send(batches)
      const culprit = claims[failed]
      if (!isRace && culprit !== undefined)
        await this.#claimAround(error, culprit, harvest).catch((failure: unknown) => {
          // What was settled has to be told. The claim is due again, and fails by itself then.
          if (batches.length === 0) throw failure
          harvest.isInterrupted = true
        })
      return ended
    }
    for (const [i, { due }] of claims.entries()) due.answered(answers[batches.length + i] ?? [])
    const ended: Ended[] = []
    for (const [i, batch] of batches.entries()) ended.push(await this.#batches.sort(batch, answers[i] ?? []))
    return ended
  }

  /** A row stops the claim: the rows it would have taken are claimed by their ids, in halves. */
  async #claimAround(
    error: unknown,
    { due, bucket }: Part<Row>['claims'][number],
    harvest: Harvest<Row>,
  ): Promise<void> {
    if (due.find === undefined) throw error
    const [found = []] = await this.#runner.send([due.find])
    if (found.length === 0) throw error
    const ids = found.slice(0, MAX_ROWS_AROUND_CULPRIT).map(([id]) => String(id))
    const claimed = await this.#claimNamed(ids, due.leaseMs, bucket)
    harvest.rows.push(...claimed)
    harvest.isInterrupted = true
    if (due.suspects === undefined) return
    harvest.suspects.push(...claimed.map(({ lease }) => lease.id))
    harvest.alone = due.suspects.alone
  }

  async #claimNamed(
    ids: readonly string[],
    leaseMs: number,
    bucket: number | undefined,
  ): Promise<FoundRow<Row>[]> {
    const parts = await inHalves(
      ids,
      async (part) => this.#claimPart(part, leaseMs, bucket),
      (id, stop) =>
        this.#options.onDataError({ verb: 'claim', id, error: stop, retryInMs: this.#excluded.add(id) }),
    )
    return parts.flat()
  }

  /** Repeated where another claim took a row of the same ordering key at the same moment. */
  async #claimPart(
    ids: readonly string[],
    leaseMs: number,
    bucket: number | undefined,
  ): Promise<FoundRow<Row>[]> {
    for (let races = 0; ; races += 1) {
      try {
        const values = { leaseMs, bucket, ...this.#runner.idArrays('id', ids) }
        return this.#reader.read(await this.#runner.run(this.#runner.statements.claimRows, values), bucket)
      } catch (error) {
        if (!isUniqueViolation(error) || races >= MAX_RACES) throw error
      }
    }
  }

  async #claimOf(
    room: ClaimRoom,
    scanned: readonly (number | undefined)[],
    harvest: Harvest<Row>,
    sentAt: number,
  ): Promise<CycleClaim<Row>> {
    const all = scanned.map((bucket) => this.#scansOf(bucket))
    const more = harvest.isInterrupted || all.some((scans) => scans.more)
    this.#buckets?.answered(scanned, harvest.rows, (bucket) => this.#scansOf(bucket).isDrained)
    const drained = !harvest.isInterrupted && this.#isDrained(all)
    if (drained && harvest.rows.length === 0) await this.#askNextDue(room, all, harvest)
    // After a claim that found rows another one follows soon.
    const scans = harvest.rows.length === 0 ? all : []
    const waits = [...scans.map(({ nextScanInMs }) => nextScanInMs), this.#buckets?.nextInMs]
    const nextInMs = Math.min(...waits.map((ms) => ms ?? Number.POSITIVE_INFINITY))
    return {
      ...this.#claimed(room, harvest, { sentAt, more }),
      // Something may have become claimable while the next due row was asked for.
      drained: drained && this.#isDrained(all),
      continued: harvest.continued,
      ...(nextInMs === Number.POSITIVE_INFINITY ? {} : { nextScanInMs: nextInMs }),
    }
  }

  #isDrained(scanned: readonly Scans<Row>[]): boolean {
    if (scanned.some(({ isDrained }) => !isDrained)) return false
    const isKnown = this.#buckets === undefined || this.#buckets.isDrained
    return isKnown && [...this.#scans.values()].every(({ continued }) => continued === 0)
  }

  /** Before the worker waits. What cannot be asked now is found by a poll. */
  async #askNextDue(room: ClaimRoom, all: readonly Scans<Row>[], harvest: Harvest<Row>): Promise<void> {
    const asked = all.filter(({ isDueUnknown }) => isDueUnknown)
    const questions = asked.flatMap((scans) => scans.askNextDue(room, harvest) ?? [])
    if (questions.length === 0) return
    const answers = await this.#runner.send(questions.map(({ statement }) => statement)).catch(() => [])
    for (const [i, rows] of answers.entries()) questions[i]?.answered(rows)
  }

  #claimed(
    { leaseMs }: Pick<ClaimRoom, 'leaseMs'>,
    { rows, suspects, alone, dueInMs }: Harvest<Row>,
    { sentAt, more }: { readonly sentAt: number; readonly more: boolean },
  ): Claim<Row> {
    return {
      claimed: rows,
      more,
      ...(dueInMs === undefined ? {} : { dueInMs }),
      ...(suspects.length === 0 ? {} : { suspects, alone }),
      ...(this.#runner.table.bytes === undefined ? {} : { bytes: this.#reader.bytesOf(rows) }),
      leaseMs,
      trustedUntil: trustedUntil(sentAt, leaseMs),
    }
  }

  #scansOf(bucket: number | undefined): Scans<Row> {
    const key = this.#runner.table.bucket === undefined ? undefined : bucket
    const known = this.#scans.get(key)
    if (known !== undefined) return known
    const { clock } = this.#options
    const scans = new Scans<Row>(this.#runner, this.#reader, { bucket: key, clock, excluded: this.#excluded })
    this.#scans.set(key, scans)
    return scans
  }
}

const NOTHING_ENDED: Ended = { ended: [], fencedOff: [], busy: [], refused: [] }
