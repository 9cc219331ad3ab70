// The record of a run: the JSON file that `all` writes and `report` reads.
import { readFile } from 'node:fs/promises'

/** Raised when a field changes its meaning, so that an old record is refused instead of misread. */
export const FORMAT = 2

export async function readRecord(file) {
  let record
  try {
    record = JSON.parse(await readFile(file, 'utf8'))
  } catch (error) {
    throw new Error(`--json ${file}: ${error.message}`, { cause: error })
  }
  checkRecord(record)
  return record
}

/** Refuses a record that the report would misrepresent, and names what is wrong. */
export function checkRecord(record) {
  if (record?.format !== FORMAT)
    throw new Error(
      `this is not a record of format ${FORMAT}: write one with \`npm --prefix bench start -- all\``,
    )
  for (const scenario of record.scenarios) {
    for (const series of scenario.series ?? []) checkSeries(scenario.name, series)
    const unknown = (scenario.checks ?? []).find(({ goal }) => !record.goals.some(({ id }) => id === goal))
    if (unknown !== undefined) throw new Error(`${scenario.name}: there is no goal "${unknown.goal}"`)
  }
}

function checkSeries(name, { side, metric, better, values }) {
  const refuse = (problem) => {
    throw new Error(`${name}: a series of ${side ?? 'no side'}: ${problem}`)
  }
  if (typeof side !== 'string' || typeof metric !== 'string') refuse('it needs a side and a metric')
  if (better !== undefined && better !== 'higher' && better !== 'lower')
    refuse(`better is "${better}": give higher or lower, or leave it out`)
  if (!Array.isArray(values)) refuse('values has one number for each round')
}

/** A run that may be published: every figure of it belongs to a commit that anybody can check out. */
export function publishable(record) {
  if (record.quick) return 'it is the record of a quick run, whose figures mean little'
  if (record.uncommittedChanges) return 'it was measured on code that is not committed'
  return undefined
}
