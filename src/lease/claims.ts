/** Claims: what is asked and answered, and how the rows of an answer are read. */
import { LeaseholdError } from '../errors.ts'
import { tokenAsText } from '../stringifiable.ts'
import type { Lease } from './lease.ts'
import type { AnswerRow } from './runner.ts'
import type { Reaped } from './reap.ts'
import { type LeaseTable, tableName } from './table.ts'
import { MAX_BATCH, returned, type ReturnedSql, type TableSql, TOKEN_AT, UNTIL_AT } from './table-sql.ts'

export interface ClaimRequest {
  readonly limit: number
  /** From which bucket to claim, where the store serves all of them. */
  readonly bucket?: number | undefined
  readonly leaseMs: number
  /** Where the table has groups: from which ones to claim, and how many rows from each. */
  readonly groups?: readonly Group[] | undefined
  /** The most bytes to claim, where the table says how large a row is; at least one row is claimed. */
  readonly bytes?: number | undefined
  /** How many suspects the claim may take: rows under which two processes died (D10). Default 1. */
  readonly suspects?: number | undefined
  /** Claim these rows and no others. */
  readonly ids?: readonly string[] | undefined
  /** Whether to take expired leases back first, in a table that lets claims take them (D5). Default true. */
  readonly takeExpired?: boolean | undefined
}

export interface Group {
  /** The value of the column that `groups` of the table names. */
  readonly group: string
  /** The most rows to claim from it. */
  readonly room: number
}

export interface Claimed<Row> {
  readonly lease: Lease
  readonly row: Row
}

export interface Claim<Row> {
  /** Of each way of finding rows, in the table's order. */
  readonly claimed: readonly Claimed<Row>[]
  /** There may be more to claim at this moment. */
  readonly more: boolean
  /** When the next row will be due, where the table has `availableAt`, and the claim found nothing. */
  readonly dueInMs?: number
  /** The ids of the suspects among the claimed rows. */
  readonly suspects?: readonly string[]
  /** The one suspect is one that has to run alone. */
  readonly alone?: boolean
  /** The size of the claimed rows together, where the table says how large a row is. */
  readonly bytes?: number
  /** The expired leases that were taken back first; their rows need not be among the claimed ones. */
  readonly reaped?: readonly Reaped[]
  /** For how long the rows were leased. */
  readonly leaseMs: number
  /** On the local monotonic clock (D8). */
  readonly trustedUntil: number
}

/** JSON.stringify writes the token as a text. A method of a class costs no claim anything. */
class ClaimedLease implements Lease {
  readonly id: string
  readonly owner: string
  readonly bucket: number | undefined
  readonly token: bigint
  readonly until: Date
  readonly #orderingKey: string | undefined

  constructor(
    id: string,
    owner: string,
    bucket: number | undefined,
    token: bigint,
    until: Date,
    orderingKey: string | undefined,
  ) {
    this.id = id
    this.owner = owner
    this.bucket = bucket
    this.token = token
    this.until = until
    this.#orderingKey = orderingKey
  }

  static orderingKeyOf(lease: Lease): string | undefined {
    return lease instanceof ClaimedLease ? lease.#orderingKey : undefined
  }

  toJSON(): object {
    return tokenAsText<Lease>(this)
  }
}

/** The ordering key of a row that was claimed with this lease. */
export const orderingKeyOf = (lease: Lease): string | undefined => ClaimedLease.orderingKeyOf(lease)

/** A claimed row, and the values that PostgreSQL returned. */
export interface FoundRow<Row> extends Claimed<Row> {
  readonly values: AnswerRow
}

/** Reads the rows that the claims of a table return. */
export class ClaimReader<Row extends object> {
  readonly #columns: readonly string[]
  readonly #positions: ReturnedSql['positions']
  readonly #order: TableSql['order']
  readonly #orderingKey: string | undefined
  readonly #owner: string
  /** Where a claim tells what concerns all of its rows: after them. */
  readonly end: number

  constructor(t: TableSql, owner: string) {
    const { columns, positions } = returned(t)
    this.#columns = t.columns
    this.#positions = positions
    this.#order = t.order
    this.#orderingKey = t.table.ordering?.key
    this.#owner = owner
    this.end = columns.length
  }

  /** In the order of the table. Rows mostly come back in it. */
  read(rows: readonly AnswerRow[], bucket: number | undefined): FoundRow<Row>[] {
    const [first] = rows
    if (first === undefined) return []
    const until = new Date(Number(first[UNTIL_AT]))
    const found = rows.map((values) => this.#row(values, bucket, until))
    const isInOrder = found.every((row, i) => i === 0 || this.#compare(found[i - 1] ?? row, row) <= 0)
    return isInOrder ? found : found.toSorted((a, b) => this.#compare(a, b))
  }

  #row(values: AnswerRow, bucket: number | undefined, until: Date): FoundRow<Row> {
    const { id: idAt, columns: from } = this.#positions
    const row: Record<string, unknown> = {}
    for (let i = 0; i < this.#columns.length; i += 1) row[this.#columns[i] ?? ''] = values[from + i]
    // A whole number, as `pg` or a parser that somebody has set for it hands it out.
    const token = BigInt(values[TOKEN_AT] as string | number | bigint)
    const key: unknown = this.#orderingKey === undefined ? undefined : row[this.#orderingKey]
    const orderingKey = textOrNull(key) ?? undefined
    const lease = new ClaimedLease(String(values[idAt]), this.#owner, bucket, token, until, orderingKey)
    // The caller says of which type the table's own columns are.
    return { lease, row: row as Row, values }
  }

  /** 0 where the table does not say how large a row is. */
  bytesOf(rows: readonly FoundRow<Row>[]): number {
    const { bytes: at } = this.#positions
    return at === undefined ? 0 : rows.reduce((sum, { values }) => sum + Number(values[at]), 0)
  }

  /** The columns of the order, as texts; null where a column is. Undefined: the row does not tell its place. */
  orderOf({ values }: FoundRow<Row>): readonly (string | null)[] | undefined {
    const { order, place } = this.#positions
    return place === undefined ? order.map((at) => textOrNull(values[at])) : undefined
  }

  /** Nulls come last in ascending order, as in PostgreSQL. */
  #compare(a: FoundRow<Row>, b: FoundRow<Row>): number {
    const { order, place } = this.#positions
    if (place !== undefined) return Number(a.values[place]) - Number(b.values[place])
    for (let i = 0; i < order.length; i += 1) {
      const [x, y] = [textOrNull(a.values[order[i] ?? 0]), textOrNull(b.values[order[i] ?? 0])]
      if (x === y) continue
      const { type = '', direction } = this.#order[i] ?? {}
      const ascending = x === null ? 1 : y === null ? -1 : compareTexts(x, y, NUMBERS.has(type))
      if (ascending !== 0) return direction === 'desc' ? -ascending : ascending
    }
    return 0
  }
}

const NUMBERS = new Set(['smallint', 'integer', 'bigint', 'numeric', 'real', 'double precision'])

function compareTexts(x: string, y: string, areNumbers: boolean): number {
  if (!areNumbers) return x < y ? -1 : 1
  const difference = Number(x) - Number(y)
  // Beyond 2^53 two whole numbers of equal length compare like their texts.
  return difference === 0 ? (x < y ? -1 : 1) : difference
}

function textOrNull(value: unknown): string | null {
  // Ids and ordering keys are texts or numbers, and what else is in the order was cast to text.
  const plain = value as string | number | bigint | null | undefined
  return plain === null || plain === undefined ? null : String(plain)
}

export const MAX_DURATION_MS = 1e12

/** Refuses requests that no statement should be sent for. */
export function checkClaim(
  table: LeaseTable,
  servedBucket: number | 'all',
  { limit, leaseMs, groups, ids, bucket }: ClaimRequest,
): void {
  checkLimit(limit)
  checkLease(leaseMs)
  if (servedBucket === 'all' && table.bucket !== undefined && bucket === undefined)
    throw invalidSetting('bucket', bucket, 'Say from which bucket to claim.')
  // A claim that names no groups would find nothing, for ever.
  if (ids !== undefined || (table.groups === undefined) === (groups === undefined)) return
  throw invalidSetting(
    'groups',
    groups?.length,
    table.groups === undefined
      ? `${tableName(table)} declares no groups: leave them out.`
      : `Say from which values of ${table.groups} to claim, and how many rows from each.`,
  )
}

export function checkLimit(limit: number): void {
  if (Number.isInteger(limit) && limit >= 1 && limit <= MAX_BATCH) return
  throw invalidSetting('limit', limit, `Ask for a whole number of rows from 1 to ${MAX_BATCH}.`)
}

export function checkLease(leaseMs: number): void {
  if (leaseMs > 0 && leaseMs <= MAX_DURATION_MS) return
  throw invalidSetting(
    'leaseMs',
    leaseMs,
    `Give a number of milliseconds above 0, at most ${MAX_DURATION_MS}.`,
  )
}

export function checkDelay(delayMs: number): void {
  if (delayMs >= 0 && delayMs <= MAX_DURATION_MS) return
  throw invalidSetting('delayMs', delayMs, `Give a number of milliseconds from 0 to ${MAX_DURATION_MS}.`)
}

export function invalidSetting(name: string, value: unknown, remedy: string): LeaseholdError {
  const text = typeof value === 'number' ? String(value) : JSON.stringify(value)
  return new LeaseholdError('SETTING_INVALID', `${name} is ${text}.`, { remedy })
}
