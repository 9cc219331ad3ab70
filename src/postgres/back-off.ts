export interface BackOff {
  readonly firstMs: number
  readonly longestMs: number
}

/** The pause after so many failures in a row: it doubles up to a longest, and up to half of it is left to chance. */
export function pauseAfter(failures: number, { firstMs, longestMs }: BackOff, random: () => number): number {
  const pause = Math.min(longestMs, firstMs * 2 ** Math.max(0, failures - 1))
  return Math.round(pause * (0.5 + random() / 2))
}
