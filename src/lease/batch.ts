import type { Lease } from './lease.ts'

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
  const byId = leases.flatMap((lease, i) =>
    isNewest(newest, lease) ? [[lease.id, jsonValues(args[i])] as const] : [],
  )
  return JSON.stringify(Object.fromEntries(byId), (_, value: unknown) =>
    typeof value === 'string' ? storable(value) : value,
  )
}

/** An argument that is left out, or misspelt, is not the same as one that is null. */
export function refuseMissingArgs(
  outcome: string,
  declared: readonly string[],
  leases: readonly Lease[],
  args: readonly OutcomeArgs[],
): void {
  leases.forEach(({ id }, i) => {
    const missing = declared.find((name) => !Object.hasOwn(args[i] ?? {}, name))
    if (missing !== undefined) {
      throw new TypeError(
        `the outcome ${outcome} needs the argument ${missing}, and row ${id} has none; null is one`,
      )
    }
  })
}

function jsonValues(args: OutcomeArgs = {}): Record<string, unknown> {
  return Object.fromEntries(Object.entries(args).map(([name, value]) => [name, jsonValue(value)]))
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
