// Sides in turn, round after round; and what follows from their figures: series, and checks of ratios within rounds.
import { notInstalled } from './peers.mjs'
import { median } from './report.mjs'

/**
 * Calls `measureOne(side, round)` for each side in each round, in the opposite order in every other round. A side that
 * fails, or cannot be measured here, has a remark and no readings. Readings of a side are in the order of the rounds.
 */
export async function inTurn({ sides, rounds, signal, print, title }, measureOne) {
  const readings = new Map(sides.map((side) => [side.name, []]))
  const remarks = []
  const leaveOut = (side, why) => {
    readings.delete(side.name)
    remarks.push(`${title}: ${side.name} was left out: ${why}`)
    print(remarks.at(-1))
  }
  for (const side of sides) {
    const why = notInstalled(side)
    if (why !== undefined) leaveOut(side, why)
  }
  for (let round = 1; round <= rounds; round += 1) {
    for (const side of round % 2 === 1 ? sides : sides.toReversed()) {
      if (!readings.has(side.name)) continue
      signal?.throwIfAborted()
      try {
        const reading = await measureOne(side, round)
        readings.get(side.name).push(reading)
        print(`${title}, round ${round}: ${side.name}: ${reading.text}`)
      } catch (error) {
        signal?.throwIfAborted()
        leaveOut(side, error.message)
      }
    }
  }
  return { readings, remarks }
}

/** One entry for each side that has readings. `valueOf` and `detailsOf` take a reading. */
export function seriesOf(readings, { variant, metric, unit, better, valueOf, detailsOf }) {
  return [...readings].map(([side, own]) => ({
    side,
    variant,
    metric,
    unit,
    better,
    values: own.map(valueOf),
    ...(detailsOf === undefined ? {} : { details: own.map(detailsOf) }),
  }))
}

/**
 * The ratio of one series to each of the others, taken within each round; the median of the rounds. It decides against the
 * other that comes off best. Undefined where there is nothing to compare.
 */
export function checkRatio({ text, of, others, limit, comparison, quick }) {
  const higherIsBetter = comparison === '>='
  const ratios = others
    .filter((other) => of !== undefined && other !== undefined && other !== of)
    .map((other) => ({
      against: other.side,
      ratio: median(of.values.map((value, i) => value / other.values[i])),
    }))
    .filter(({ ratio }) => ratio !== undefined)
    .sort((a, b) => (higherIsBetter ? a.ratio - b.ratio : b.ratio - a.ratio))
  if (ratios.length === 0) return undefined
  const [{ against, ratio }] = ratios
  return judged({ text, ratio, limit, comparison, against }, quick)
}

/** A check of a figure that is no ratio to another series. */
export function checkValue({ text, value, limit, comparison, quick }) {
  return judged({ text, ratio: value, limit, comparison }, quick)
}

/** A quick run has too few events for a judgement. */
function judged(check, quick) {
  const met = check.comparison === '>=' ? check.ratio >= check.limit : check.ratio <= check.limit
  return { ...check, met, judged: !quick }
}
