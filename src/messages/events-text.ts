import { LeaseholdError } from '../errors.ts'

/** The most that is sent at once; PostgreSQL takes no value of a gibibyte, and V8 no string of half of one. */
const LARGEST_TEXT = 256 * 1024 * 1024

/** Events, each as JSON already, as one JSON list: one parameter for every driver, whatever their number. */
export function eventsText(texts: readonly string[], limit = LARGEST_TEXT): string {
  const size = texts.reduce((sum, text) => sum + text.length, 0)
  if (size <= limit) return `[${texts.join(',')}]`
  throw new LeaseholdError(
    'EVENT_TOO_LARGE',
    `Nothing was written: the ${texts.length} events of this call have ${size} characters together, and at most ${limit} are allowed.`,
    { remedy: 'Give them in several calls; inside one transaction that is as good as one.' },
  )
}
