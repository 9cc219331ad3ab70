// What all scenarios do with rounds: sides in turn, one value for each round, ratios within rounds.
import { median } from './report.mjs'

export { median }

/** Each side once in each round; in every other round in the opposite order, so that no side is always first. */
export function* inTurns(sides, rounds) {
  for (let round = 1; round <= rounds; round += 1)
    for (const side of round % 2 === 1 ? sides : sides.toReversed()) yield { round, side }
}

/**
 * Runs `measure` for each side in turn. A side that fails in one round has no figures at all, and a remark that says why.
 * Returns the readings of each side, one for each round.
 */
export async function measureInTurns({ sides, rounds, print, signal, remarks, nameOf = String }, measure) {
  const readings = new Map(sides.map((side) => [side, []]))
  for (const { round, side } of inTurns(sides, rounds)) {
    signal?.throwIfAborted()
    if (!readings.has(side)) continue
    try {
      const reading = await measure(side, round)
      readings.get(side).push(reading)
      print(`round ${round}: ${nameOf(side)}: ${summary(reading)}`)
    } catch (error) {
      signal?.throwIfAborted()
      readings.delete(side)
      remarks.push(`${nameOf(side)}: no figures, because round ${round} failed: ${briefly(error.message)}`)
      print(`round ${round}: ${nameOf(side)}: ${error.message}`)
    }
  }
  if (readings.size === 0) throw new Error(remarks.join('\n'))
  // Sides are measured in another order in every other round; the readings of each are in the order of the rounds.
  return readings
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
