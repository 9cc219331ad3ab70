// Which charts a scenario gets: one for each metric. Lines where a side was measured at several sizes, bars otherwise.
import { formatFigure, summary } from './figures.mjs'
import { barChart, lineChart } from './svg.mjs'

/** Its own bars are highlighted. A build of another name is told from a peer by this. */
export const isOwn = (side) => /^leasehold\b/i.test(side)

/** From this many sizes on, a line says more than bars. */
const SIZES_OF_A_LINE = 3

/** `[{ file, alt, svg }]`. A metric with a single figure gets none: the table has it. */
export function chartsOf(scenario) {
  return metricsOf(scenario).flatMap((metric) => {
    const { lines, xLabel } = linesOf(metric.series)
    const bars = metric.series.filter(({ values }) => summary(values))
    const description = describe(metric)
    const { better, unit } = metric
    const common = { title: capitalized(metric.name), subtitle: scenario.title, better, unit, description }
    const file = `${scenario.name}-${slug(metric.name)}.svg`
    const alt = `${scenario.title}: ${metric.name}`
    if (lines.length > 0) {
      const rounds = roundsOf(lines.flatMap(({ points }) => points))
      return [{ file, alt, svg: lineChart({ ...common, xLabel, lines, rounds }) }]
    }
    const summaries = bars.map(({ values }) => summary(values))
    // Bars start at 0: below it they would mislead, and without any length they say nothing.
    if (bars.length < 2 || summaries.some(({ low }) => low < 0) || summaries.every(({ high }) => high === 0))
      return []
    const groups = groupsOf(bars)
    const rounds = roundsOf(groups.flatMap((group) => group.bars))
    return [{ file, alt, svg: barChart({ ...common, groups, rounds }) }]
  })
}

/** The series of a scenario by metric, in the order in which they were measured. */
export function metricsOf({ series = [] }) {
  const metrics = new Map()
  for (const one of series) {
    const key = `${one.metric}\n${one.unit ?? ''}`
    if (!metrics.has(key))
      metrics.set(key, { name: one.metric, unit: one.unit ?? '', better: one.better, series: [] })
    metrics.get(key).series.push(one)
  }
  return [...metrics.values()]
}

const roundsOf = (entries) => Math.max(...entries.map((one) => one.summary.rounds))

/** The bars of each variant. With one side only, the bars are the variants. */
function groupsOf(series) {
  const sides = new Set(series.map(({ side }) => side))
  if (sides.size === 1 && series.every(({ variant }) => variant)) {
    const bars = series.map(({ side, variant, values }) => barOf(variant, side, values))
    return [{ name: [...sides][0], bars }]
  }
  const groups = new Map()
  for (const { side, variant = '', values } of series) {
    if (!groups.has(variant)) groups.set(variant, { name: variant, bars: [] })
    groups.get(variant).bars.push(barOf(side, side, values))
  }
  return [...groups.values()]
}

const barOf = (name, side, values) => ({ name, own: isOwn(side), summary: summary(values) })

const capitalized = (text) => text.charAt(0).toUpperCase() + text.slice(1)

/**
 * The lines of a metric: of series with `details.portions` (for each round the figures of equal portions of the work), and
 * of series whose variants are sizes (`1 process`, `2 processes`, `4 processes`; `10k rows`, `100k
 * rows`, `1M rows`).
 */
function linesOf(series) {
  const measured = series.filter(({ values }) => summary(values))
  const inPortions = measured.filter(({ details }) => Array.isArray(details?.portions))
  const found =
    inPortions.length > 0
      ? { lines: linesOfPortions(inPortions), xLabel: 'per cent of the work done' }
      : linesOfSizes(measured)
  const lines = found.lines.filter(({ points }) => points.length > 1)
  return { xLabel: found.xLabel, lines: named(lines) }
}

/** The first and the last portion may be series of their own, with the same portions in the details of both. */
function linesOfPortions(series) {
  const lines = new Map()
  for (const { side, variant = '', details } of series) {
    const { line = variant, portions } = details
    const count = Math.max(...portions.map((ofRound) => ofRound.length))
    const points = Array.from({ length: count }, (_, i) => ({
      x: ((i + 1) / count) * 100,
      summary: summary(portions.map((ofRound) => ofRound[i])),
    }))
    lines.set(`${side}\n${line}`, { side, variant: line, points: byX(points) })
  }
  return [...lines.values()]
}

const byX = (points) => points.filter((point) => point.summary).sort((a, b) => a.x - b.x)

function linesOfSizes(series) {
  const none = { lines: [], xLabel: '' }
  const sizes = series.map(({ variant }) => sizeOf(variant))
  const unit = sizes[0]?.unit
  if (sizes.some((size) => size === undefined || size.unit.slice(0, 4) !== unit.slice(0, 4))) return none
  if (new Set(sizes.map(({ x }) => x)).size < SIZES_OF_A_LINE) return none
  const sides = [...new Set(series.map(({ side }) => side))]
  const lines = sides.map((side) => ({
    side,
    variant: '',
    points: byX(
      series.flatMap((one, i) =>
        one.side === side ? [{ x: sizes[i].x, summary: summary(one.values) }] : [],
      ),
    ),
  }))
  return { lines, xLabel: sizes.at(-1).unit }
}

const MULTIPLES = { k: 1_000, K: 1_000, M: 1_000_000 }

/** `10k rows` is 10,000 of the unit `rows`. Undefined for a variant that is no size. */
export function sizeOf(variant = '') {
  const found = /^(\d[\d,]*(?:\.\d+)?)([kKM](?![a-z]))?\s*([a-z].*)?$/i.exec(variant.trim())
  if (found === null) return undefined
  const [, digits, multiple, unit = ''] = found
  return { x: Number(digits.replaceAll(',', '')) * (MULTIPLES[multiple] ?? 1), unit }
}

/** A line is named by what distinguishes it: its side, its variant, or both. */
function named(lines) {
  const sides = new Set(lines.map(({ side }) => side)).size
  const variants = new Set(lines.map(({ variant }) => variant)).size
  return lines.map(({ side, variant, points }) => {
    const parts = [...(sides > 1 || variants === 1 ? [side] : []), ...(variants > 1 ? [variant] : [])]
    return { name: parts.filter((part) => part !== '').join(', '), points }
  })
}

/** All figures of a chart as text, for those who cannot see it. */
function describe({ series, unit }) {
  const figure = (values) => {
    const found = summary(values)
    return found === undefined ? 'not measured' : formatFigure(found.median, unit)
  }
  return series
    .map(({ side, variant, values }) => `${[side, variant].filter(Boolean).join(', ')}: ${figure(values)}`)
    .join('; ')
}

const MAX_SLUG_CHARACTERS = 60

const slug = (text) =>
  text
    .toLowerCase()
    .replaceAll(/[^a-z0-9]+/g, '-')
    .slice(0, MAX_SLUG_CHARACTERS)
    .replaceAll(/^-|-$/g, '')
