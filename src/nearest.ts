/** Names that a caller may have mistyped: the refusal of unknown ones, and "did you mean". */
import { LeaseholdError } from './errors.ts'

/** The names of all fields of an interface. The compiler refuses one that is missing, or one too many. */
export function namesOf<Options>(names: Readonly<Record<keyof Options & string, true>>): readonly string[] {
  return Object.keys(names)
}

/**
 * The problems with the names in `given`, one for each that is not in `known`: `unknown option prot (did you mean port?)`.
 * A field that is `undefined` counts as well: under a wrong name it is a mistake, too.
 */
export function unknownNames(given: object, known: readonly string[], what = 'option'): string[] {
  return Object.keys(given)
    .filter((name) => !known.includes(name))
    .map((name) => `unknown ${what} ${name} (${suggestion(name, known, `${what}s`)})`)
}

/** For a function that takes an object of options: refuses what is not an object, and names that it does not know. */
export function refuseUnknownOptions(of: string, given: unknown, known: readonly string[]): void {
  const problems =
    typeof given === 'object' && given !== null && !Array.isArray(given)
      ? unknownNames(given, known)
      : [
          `${given === null ? 'null' : Array.isArray(given) ? 'a list' : `a value of type ${typeof given}`} was given, but they must be an object (the options are ${known.join(', ')})`,
        ]
  if (problems.length === 0) return
  throw new LeaseholdError('SETTING_INVALID', `The options of ${of}: ${problems.join('; ')}.`, {
    remedy: 'Correct the options named.',
  })
}

/** What to say of an unknown name: the known one that was most likely meant, or all of them. */
export function suggestion(name: string, known: readonly string[], what = 'names'): string {
  const meant = nearest(name, known)
  return meant === undefined ? `the ${what} are ${known.join(', ')}` : `did you mean ${meant}?`
}

/** Returns the known name that was most likely meant, if one is close. */
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
