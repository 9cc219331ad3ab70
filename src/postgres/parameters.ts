/** Collects the values of one statement; each call returns the placeholder that stands for its value. */
export interface PositionalParameters {
  /** Without a type, it has that of what it is compared with. */
  (value: unknown, type?: string): string
  readonly values: readonly unknown[]
}

/**
 * For statements whose conditions depend on the request. Statements of a fixed shape, which are prepared once, use the
 * named `parameters()` of src/lease.
 */
export function positionalParameters(): PositionalParameters {
  const values: unknown[] = []
  return Object.assign(
    (value: unknown, type?: string) => `$${values.push(value)}${type === undefined ? '' : `::${type}`}`,
    { values },
  )
}
