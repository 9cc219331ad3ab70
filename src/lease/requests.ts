/** Refuses requests that no statement should be sent for. */
import { LeaseholdError } from '../errors.ts'
import { MAX_BATCH } from './table-sql.ts'
import { type LeaseTable, tableName } from './table.ts'

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

/** A claim that names no groups would find nothing, for ever. */
export function checkGroups(table: LeaseTable, groups: readonly unknown[] | undefined): void {
  if ((table.groups === undefined) === (groups === undefined)) return
  throw invalid(
    'groups',
    groups?.length,
    table.groups === undefined
      ? `${tableName(table)} declares no groups: leave them out.`
      : `Say from which values of ${table.groups} to claim, and how many rows from each.`,
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
