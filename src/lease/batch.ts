import { type Lease } from './lease.ts'

/**
 * Of two leases on one row only the one with the higher token can be current, so only that one is asked about, and a
 * lease that is in the batch twice is asked about once.
 */
export function newestOfEachRow(leases: readonly Lease[]): Map<string, Lease> {
  const newest = new Map<string, Lease>()
  for (const lease of leases) {
    const other = newest.get(lease.id)
    if (other === undefined || other.token < lease.token) newest.set(lease.id, lease)
  }
  return newest
}

/** Whether the lease, or an equal one, is the one that was asked about. */
export function isNewest(newest: ReadonlyMap<string, Lease>, lease: Lease): boolean {
  return newest.get(lease.id)?.token === lease.token
}

export type OutcomeArgs = Readonly<Record<string, unknown>>

/** The arguments of each row as one JSON object, in a form that PostgreSQL takes whatever a handler threw. */
export function argsJson(
  leases: readonly Lease[],
  newest: ReadonlyMap<string, Lease>,
  args: readonly OutcomeArgs[],
): string {
  const byId: Record<string, Record<string, unknown>> = {}
  leases.forEach((lease, i) => {
    if (!isNewest(newest, lease)) return
    const entries = Object.entries(args[i] ?? {}).map(([name, value]) => [name, jsonValue(value)])
    byId[lease.id] = Object.fromEntries(entries)
  })
  return JSON.stringify(byId, (_, value: unknown) => (typeof value === 'string' ? storable(value) : value))
}

/** `->>` gives the text that the declared type is then cast from; JSON has no word for these. */
function jsonValue(value: unknown): unknown {
  if (typeof value === 'bigint') return value.toString()
  if (typeof value === 'number' && !Number.isFinite(value)) return String(value)
  if (value instanceof Uint8Array) return `\\x${Buffer.from(value).toString('hex')}`
  return value
}

/** A cut-off emoji or a NUL in one error message would keep the whole batch from being settled. */
function storable(text: string): string {
  return text.toWellFormed().replaceAll('\0', '\uFFFD')
}
