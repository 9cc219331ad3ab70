// Scenarios that compare Leasehold with itself: its variants in turn, one value for each round, ratios within rounds.
import { inTurn } from './comparison.mjs'
import { median } from './report.mjs'

export { median }

/**
 * Runs `measure` for each side in turn and returns the readings of each, in the order of the rounds. A side that fails in
 * one round has no readings at all, and a remark that says why. Throws when there are no readings of any side.
 */
export async function measureInTurns(
  { sides, rounds, print, signal, remarks, title, nameOf = String },
  measure,
) {
  const named = sides.map((side) => ({ name: nameOf(side), side }))
  const { readings, remarks: failures } = await inTurn(
    { sides: named, rounds, print, signal, title },
    async ({ side }, round) => {
      try {
        const reading = await measure(side, round)
        return { ...reading, text: summary(reading) }
      } catch (error) {
        throw new Error(briefly(error.message), { cause: error })
      }
    },
  )
  remarks.push(...failures)
  if (readings.size === 0) throw new Error(failures.join('; '))
  return new Map(
    named.filter(({ name }) => readings.has(name)).map(({ name, side }) => [side, readings.get(name)]),
  )
}

/** For the published record: the line that says what went wrong, without stacks and paths of this machine. */
export function briefly(message) {
  const lines = message.split('\n').filter((line) => line.trim() !== '')
  const line =
    (lines.length > 1 ? lines.find((one) => /^\w*error\b/i.test(one)) : undefined) ?? lines[0] ?? ''
  return line.replaceAll(/(?:file:\/\/)?(?:\/[^\s/:]+){2,}/g, '…')
}

function summary(reading) {
  return Object.entries(reading)
    .filter(([, value]) => typeof value === 'number')
    .map(([name, value]) => `${name} ${Number(value.toPrecision(4))}`)
    .join(', ')
}

/** A check of a ratio: of two values of one round each, the median of the rounds. Undefined where a side has no figures. */
export function ratioCheck({ text, of, to, comparison, limit, against }) {
  if (of === undefined || to === undefined) return undefined
  const ratio = median(of.map((value, i) => value / to[i]))
  return { text, ratio, limit, comparison, met: compares(ratio, comparison, limit), against }
}

/** A check of a value itself (`ratio`, with its unit). It is a bound, so the worst round decides. */
export function valueCheck({ text, values, unit, comparison, limit }) {
  if (values === undefined) return undefined
  const ratio = comparison === '>=' ? Math.min(...values) : Math.max(...values)
  return { text, ratio, unit, limit, comparison, met: compares(ratio, comparison, limit) }
}

function compares(value, comparison, limit) {
  return comparison === '>=' ? value >= limit : value <= limit
}

export const present = (checks) => checks.filter((check) => check !== undefined)
