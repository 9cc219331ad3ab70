/** Refuses what no statement should be sent for. */
import { LeaseholdError } from '../errors.ts'
import { MAX_BATCH } from './sql.ts'
import { type LeaseTable, tableName } from './table.ts'
import type { Lane } from './verbs.ts'

const LONGEST_MS = 1e12

export function checkOwner(owner: unknown): void {
  if (typeof owner === 'string' && owner.trim() !== '' && !owner.includes('\0')) return
  throw invalid('owner', owner, 'Give every worker a unique id that is not empty.')
}

export function checkBucket(bucket: number): void {
  if (!Number.isInteger(bucket)) throw invalid('bucket', bucket, 'Give a whole number.')
}

export function checkLimit(limit: number): void {
  if (Number.isInteger(limit) && limit >= 1 && limit <= MAX_BATCH) return
  throw invalid('limit', limit, `Ask for a whole number of rows from 1 to ${MAX_BATCH}.`)
}

/** A claim that says nothing of lanes would find nothing, for ever. */
export function checkLanes(table: LeaseTable, lanes: readonly Lane[] | undefined): void {
  if ((table.lanes === undefined) === (lanes === undefined)) return
  throw invalid(
    'lanes',
    lanes?.length,
    table.lanes === undefined
      ? `${tableName(table)} declares no lanes: leave them out.`
      : `Say from which values of ${table.lanes} to claim, and how many from each.`,
  )
}

export function checkLease(leaseMs: number): void {
  if (leaseMs > 0 && leaseMs <= LONGEST_MS) return
  throw invalid('leaseMs', leaseMs, `Give a number of milliseconds above 0, at most ${LONGEST_MS}.`)
}

export function checkDelay(delayMs: number): void {
  if (delayMs >= 0 && delayMs <= LONGEST_MS) return
  throw invalid('delayMs', delayMs, `Give a number of milliseconds from 0 to ${LONGEST_MS}.`)
}

function invalid(name: string, value: unknown, remedy: string): LeaseholdError {
  const shown = typeof value === 'number' ? String(value) : JSON.stringify(value)
  return new LeaseholdError('SETTING_INVALID', `${name} is ${shown}.`, { remedy })
}
