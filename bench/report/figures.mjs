// Medians, spreads, ratios within rounds, and how figures are written.

const isFigure = (value) => typeof value === 'number' && Number.isFinite(value)

/** Undefined without a figure. A round in which a side failed has none. */
export function median(values) {
  const known = values.filter(isFigure).sort((a, b) => a - b)
  if (known.length === 0) return undefined
  const middle = Math.floor(known.length / 2)
  return known.length % 2 === 1 ? known[middle] : (known[middle - 1] + known[middle]) / 2
}

/** The median, and the smallest and the largest value of the rounds; undefined without a figure. */
export function summary(values) {
  const known = values.filter(isFigure)
  if (known.length === 0) return undefined
  return { median: median(known), low: Math.min(...known), high: Math.max(...known), rounds: known.length }
}

/**
 * The median of the ratios within each round. Rounds are neighbours in time and share the state of the machine; medians of
 * two sides do not. Undefined unless both sides have a value for each round, and for figures that are not positive.
 */
export function ratioWithinRounds(values, others) {
  if (values.length !== others.length) return undefined
  const isPositive = (value) => isFigure(value) && value > 0
  return median(
    values.map((value, round) =>
      isPositive(value) && isPositive(others[round]) ? value / others[round] : undefined,
    ),
  )
}

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 })
const precise = new Intl.NumberFormat('en', { maximumSignificantDigits: 3 })

/** Three significant digits below 100, whole numbers from there on, four significant digits from 100,000 on. */
export function formatNumber(value) {
  if (!isFigure(value)) return '–'
  if (Math.abs(value) >= 100_000) return whole.format(Number(value.toPrecision(4)))
  return Math.abs(value) >= 100 ? whole.format(value) : precise.format(value)
}

/** `12,300/s`, `1,488 bytes`, `0.93`. */
export function formatFigure(value, unit = '') {
  const number = formatNumber(value)
  if (unit === '' || number === '–') return number
  return unit.startsWith('/') ? `${number}${unit}` : `${number} ${unit}`
}

/** As many decimals as it takes to see on which side of the limit a ratio is: 1.2996 does not become 1.30. */
export function formatAgainst(value, limit) {
  if (!isFigure(value)) return '–'
  if (!isFigure(limit) || Math.abs(value) >= 100) return formatNumber(value)
  for (const digits of [2, 3, 4, 5]) {
    const text = value.toFixed(digits)
    if (value === limit || Number(text) !== Number(limit.toFixed(digits))) return text
  }
  return String(value)
}
