/** Returns the known name that was most likely meant, if one is close: for "did you mean" in error messages. */
export function nearest(name: string, known: readonly string[]): string | undefined {
  const given = normalise(name)
  const [best] = known
    .map((candidate) => ({ candidate, distance: editDistance(given, normalise(candidate)) }))
    .sort((a, b) => a.distance - b.distance)
  if (best === undefined) return undefined
  return best.distance <= Math.max(2, Math.floor(best.candidate.length / 3)) ? best.candidate : undefined
}

function normalise(name: string): string {
  return name.toLowerCase().replaceAll(/[^a-z0-9]/g, '')
}

/** The Levenshtein distance, computed with one row of the matrix at a time. */
function editDistance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, i) => i)
  for (const [i, left] of a.split('').entries()) {
    const next = [i + 1]
    for (const [j, right] of b.split('').entries()) {
      const replaced = (row[j] ?? 0) + (left === right ? 0 : 1)
      next.push(Math.min(replaced, (row[j + 1] ?? 0) + 1, (next[j] ?? 0) + 1))
    }
    row = next
  }
  return row.at(-1) ?? 0
}
