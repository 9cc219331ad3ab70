/** Collects the values of one statement; each call returns the placeholder that stands for its value. */
export interface Values {
  (value: unknown, type: string): string
  readonly all: unknown[]
}

export function values(): Values {
  const all: unknown[] = []
  return Object.assign((value: unknown, type: string) => `$${all.push(value)}::${type}`, { all })
}
