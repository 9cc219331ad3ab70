// Sides in turn, round after round; and what follows from their figures: series, and checks of ratios within rounds.
import { goalOf, isBetterAbove } from './goals.mjs'
import { notInstalled } from './peers.mjs'
import { median } from './report/figures.mjs'

/**
 * Calls `measure(side, round)` for each side in each round, in the opposite order in every other round, and returns the
 * readings of each side, in the order of the rounds. A side that fails, or cannot be measured here, has a remark and no
 * readings. `nameOf`: what a side is called in what is printed.
 */
export async function measureInTurns(
  { sides, rounds, print, signal, remarks, title, nameOf = ({ name }) => name },
  measure,
) {
  const readings = new Map(sides.map((side) => [side, []]))
  const leaveOut = (side, why) => {
    readings.delete(side)
    remarks.push(`${title}: ${nameOf(side)} was left out: ${why}`)
    print(remarks.at(-1))
  }
  for (const side of sides) {
    const why = notInstalled(side)
    if (why !== undefined) leaveOut(side, why)
  }
  for (let round = 1; round <= rounds; round += 1) {
    for (const side of round % 2 === 1 ? sides : sides.toReversed()) {
      if (!readings.has(side)) continue
      signal?.throwIfAborted()
      try {
        const reading = await measure(side, round)
        readings.get(side).push(reading)
        print(`${title}, round ${round}: ${nameOf(side)}: ${reading.text ?? summary(reading)}`)
      } catch (error) {
        signal?.throwIfAborted()
        leaveOut(side, briefly(error.message))
      }
    }
  }
  return readings
}

/** For the published record: the line that says what went wrong, without stacks and paths of this machine. */
function briefly(message) {
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

/**
 * For each metric one series for each side that has readings with this figure. `figure` names a field of a reading; in its
 * place, `valueFrom` and `detailsOf` take a reading. `variant`: that of the side, unless it is given.
 */
export function seriesOf(readings, metrics, variant) {
  return metrics.flatMap(({ figure, valueFrom = (reading) => reading[figure], detailsOf, ...metric }) =>
    [...readings]
      .filter(([, own]) => own.some((reading) => valueFrom(reading) !== undefined))
      .map(([side, own]) => ({
        side: side.name,
        variant: variant ?? side.variant,
        ...metric,
        values: own.map(valueFrom),
        ...(detailsOf === undefined ? {} : { details: own.map(detailsOf) }),
      })),
  )
}

/**
 * How a goal came out, from pairs `{ of, to, against }` of values that have one number for each round. A ratio is taken
 * within each round, and the median of the rounds counts; of several pairs, the one that comes off worst. Empty where
 * nothing can be compared.
 */
export function ratioCheck(id, pairs) {
  const goal = goalOf(id)
  const [worst] = pairs
    .filter(({ of, to }) => of !== undefined && to !== undefined)
    .map(({ of, to, against }) => ({ goal: id, ratio: median(of.map((value, i) => value / to[i])), against }))
    .filter(({ ratio }) => ratio !== undefined)
    .sort((a, b) => (isBetterAbove(goal) ? a.ratio - b.ratio : b.ratio - a.ratio))
  return worst === undefined ? [] : [worst]
}

/** How a goal came out that bounds a figure: the worst round decides. */
export function boundCheck(id, values) {
  if (values === undefined || values.length === 0) return []
  return [{ goal: id, ratio: isBetterAbove(goalOf(id)) ? Math.min(...values) : Math.max(...values) }]
}
