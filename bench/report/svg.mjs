// Two kinds of charts as SVG text: horizontal bars with spread, and lines. Each chart paints its own background and follows
// `prefers-color-scheme`, so that it is readable wherever the page is shown. Colours are never the only distinction: bars are
// labelled, and lines have labels and markers.
import { formatFigure, formatNumber } from './figures.mjs'

/** `100k` and `2.5M`, where `100,000` would take up too much room. */
function formatTick(value) {
  if (value >= 1_000_000) return `${formatNumber(value / 1_000_000)}M`
  return value >= 10_000 ? `${formatNumber(value / 1_000)}k` : formatNumber(value)
}

const WIDTH = 760
const PADDING = 20
const FONT_SIZE = 13

/** Classes instead of CSS variables, which some renderers of SVG do not know. */
const LIGHT = {
  background: '#ffffff',
  text: '#1f2328',
  muted: '#59636e',
  grid: '#e3e8ed',
  bar: '#b1bac4',
  ownBar: '#2f81f7',
  spread: '#1f2328',
  lines: ['#0969da', '#bc4c00', '#1a7f37', '#8250df', '#bf3989', '#57606a', '#9a6700'],
}
const DARK = {
  background: '#0d1117',
  text: '#e6edf3',
  muted: '#9198a1',
  grid: '#262c36',
  bar: '#59636e',
  ownBar: '#388bfd',
  spread: '#f0f6fc',
  lines: ['#58a6ff', '#f0883e', '#3fb950', '#bc8cff', '#f778ba', '#9ea7b3', '#d29922'],
}

function rules({ background, text, muted, grid, bar, ownBar, spread, lines }) {
  return [
    `.background{fill:${background}}.halo{stroke:${background}}`,
    `.text{fill:${text}}.muted{fill:${muted}}.grid{stroke:${grid}}.axis{stroke:${muted}}`,
    `.bar{fill:${bar}}.own{fill:${ownBar}}.spread{stroke:${spread}}`,
    ...lines.map((colour, i) => `.l${i}{stroke:${colour}}.f${i}{fill:${colour}}`),
  ].join('')
}

const STYLE = `text{font:${FONT_SIZE}px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif}.title{font-weight:600;font-size:15px}.small{font-size:12px}.strong{font-weight:600}.end{text-anchor:end}.middle{text-anchor:middle}.halo{stroke-width:3;paint-order:stroke;stroke-linejoin:round}.line{fill:none;stroke-width:2}${rules(LIGHT)}@media (prefers-color-scheme:dark){${rules(DARK)}}`

export function escapeXml(text) {
  return String(text)
    .replaceAll('&', '&amp;')
    .replaceAll('<', '&lt;')
    .replaceAll('>', '&gt;')
    .replaceAll('"', '&quot;')
}

/** An average of system fonts: SVG cannot measure text, and labels must not overlap. */
const widthOf = (text, size = FONT_SIZE) => String(text).length * size * 0.56

const at = (value) => Number(value.toFixed(1))

function label(x, y, text, classes = 'text') {
  return `<text x="${at(x)}" y="${at(y)}" class="${classes}">${escapeXml(text)}</text>`
}

function line(x1, y1, x2, y2, classes, width = 1) {
  return `<line x1="${at(x1)}" y1="${at(y1)}" x2="${at(x2)}" y2="${at(y2)}" class="${classes}" stroke-width="${width}"/>`
}

function document({ title, subtitle, description, height, body }) {
  return `<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}">
<title>${escapeXml(subtitle ? `${subtitle}: ${title}` : title)}</title>
<desc>${escapeXml(description)}</desc>
<style>${STYLE}</style>
<rect class="background" width="${WIDTH}" height="${height}" rx="6"/>
${body.join('\n')}
</svg>
`
}

function heading({ title, subtitle = '', better, rounds }) {
  const direction = better === undefined ? [] : [`${better} is better`]
  const spread = rounds > 1 ? [`median of ${rounds} rounds, with the lowest and the highest`] : []
  const width = WIDTH - 2 * PADDING
  return [
    label(PADDING, 32, shortened(title, width, 15), 'text title'),
    label(PADDING, 52, shortened(subtitle, width), 'text'),
    label(PADDING, 71, [...direction, ...spread].join('; '), 'muted small'),
  ]
}

const HEADING_HEIGHT = 84

/** Round numbers from 0 to at least the largest value, four to six of them. */
export function ticksUpTo(largest) {
  if (!(largest > 0)) return [0, 1]
  const rough = largest / 5
  const power = 10 ** Math.floor(Math.log10(rough))
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough)
  const count = Math.ceil(largest / step - 1e-9)
  return Array.from({ length: count + 1 }, (_, i) => Number((i * step).toPrecision(12)))
}

/** Powers of ten around all values; with half steps where there are few. */
function decades(smallest, largest) {
  const first = Math.floor(Math.log10(smallest) + 1e-9)
  const last = Math.ceil(Math.log10(largest) - 1e-9)
  return Array.from({ length: Math.max(1, last - first) + 1 }, (_, i) => 10 ** (first + i))
}

const ROW_HEIGHT = 27
const BAR_HEIGHT = 17
const GROUP_GAP = 14

/**
 * `groups`: `[{ name, bars: [{ name, own, summary: { median, low, high } }] }]`. Bars start at 0: their lengths are
 * proportional to what they show.
 */
export function barChart({ title, subtitle, better, unit, groups, rounds, description }) {
  const bars = groups.flatMap((group) => group.bars)
  const hasNames = groups.some(({ name }) => name !== '')
  const nameWidth = Math.min(300, Math.max(...bars.map(({ name, own }) => widthOf(name, own ? 14 : 13)))) + 12
  const valueOf = ({ summary }) => formatFigure(summary.median, unit)
  const valueWidth = Math.max(...bars.map((bar) => widthOf(valueOf(bar)))) + 12
  const left = PADDING + nameWidth
  const right = WIDTH - PADDING - valueWidth
  const largest = Math.max(...bars.map(({ summary }) => summary.high)) || 1
  const ticks = ticksUpTo(largest).filter((tick) => tick <= largest)
  const x = (value) => left + (value / largest) * (right - left)

  const rows = []
  let y = HEADING_HEIGHT + 6
  for (const [i, group] of groups.entries()) {
    if (i > 0) y += GROUP_GAP
    if (hasNames) {
      rows.push(label(PADDING, y + 12, group.name, 'text strong halo'))
      y += 22
    }
    for (const bar of group.bars) {
      const { median, low, high } = bar.summary
      const middle = y + BAR_HEIGHT / 2
      rows.push(
        label(
          left - 10,
          middle + 4.5,
          shortened(bar.name, nameWidth - 12),
          `text end${bar.own ? ' strong' : ''}`,
        ),
        `<rect x="${at(left)}" y="${at(y)}" width="${at(Math.max(1, x(median) - left))}" height="${BAR_HEIGHT}" rx="2" class="${bar.own ? 'own' : 'bar'}"/>`,
      )
      const hasSpread = high > low
      if (hasSpread)
        rows.push(
          line(x(low), middle, x(high), middle, 'spread', 1.25),
          line(x(low), middle - 4, x(low), middle + 4, 'spread', 1.25),
          line(x(high), middle - 4, x(high), middle + 4, 'spread', 1.25),
        )
      rows.push(
        label(
          (hasSpread ? x(high) : x(median)) + 8,
          middle + 4.5,
          valueOf(bar),
          `text halo${bar.own ? ' strong' : ''}`,
        ),
      )
      y += ROW_HEIGHT
    }
  }
  const bottom = y - ROW_HEIGHT + BAR_HEIGHT + 8
  const grid = ticks.flatMap((tick) => [
    line(x(tick), HEADING_HEIGHT, x(tick), bottom, tick === 0 ? 'axis' : 'grid'),
    label(x(tick), bottom + 17, formatTick(tick), 'muted small middle'),
  ])
  return document({
    title,
    subtitle,
    description,
    height: Math.ceil(bottom + 17 + PADDING - 4),
    body: [...heading({ title, subtitle, better, rounds }), ...grid, ...rows],
  })
}

function shortened(text, width, size = FONT_SIZE) {
  if (widthOf(text, size) <= width) return text
  return `${text.slice(0, Math.max(1, Math.floor(width / widthOf('x', size)) - 1))}…`
}

const PLOT_HEIGHT = 270
const LABEL_HEIGHT = 17

/** From this ratio of the largest to the smallest value on, a linear axis would show nothing of the smaller ones. */
const LOGARITHMIC_X = 8
const LOGARITHMIC_Y = 50

/** `lines`: `[{ name, points: [{ x, summary }] }]`, the points in the order of x. */
export function lineChart({ title, subtitle, better, unit, xLabel, lines, rounds, description }) {
  const points = lines.flatMap((one) => one.points)
  const xs = [...new Set(points.map((point) => point.x))].sort((a, b) => a - b)
  const lows = points.map(({ summary }) => summary.low)
  const highs = points.map(({ summary }) => summary.high)
  const isEven = evenlySpaced(xs)
  const logX = !isEven && xs[0] > 0 && xs.at(-1) / xs[0] >= LOGARITHMIC_X
  const logY = Math.min(...lows) > 0 && Math.max(...highs) / Math.min(...lows) >= LOGARITHMIC_Y
  const yTicks = logY ? decades(Math.min(...lows), Math.max(...highs)) : ticksUpTo(Math.max(...highs))
  const yTexts = yTicks.map(formatTick)

  const left = PADDING + Math.max(...yTexts.map((text) => widthOf(text, 12))) + 10
  const right = WIDTH - PADDING - Math.min(240, Math.max(...lines.map(({ name }) => widthOf(name, 14)))) - 16
  const top = HEADING_HEIGHT + 8
  const bottom = top + PLOT_HEIGHT
  const scale = (value, from, to, isLog) =>
    isLog
      ? (Math.log(value) - Math.log(from)) / (Math.log(to) - Math.log(from))
      : (value - from) / (to - from)
  // Without logarithms the axis of an even series starts where the series does; a share of the work done starts at 0.
  const xFrom = xs[0]
  const xTo = xs.length === 1 ? xs[0] + 1 : xs.at(-1)
  const x = (value) => left + 8 + scale(value, xFrom, xTo, logX) * (right - left - 16)
  const y = (value) => bottom - scale(value, yTicks[0], yTicks.at(-1), logY) * PLOT_HEIGHT

  const grid = yTicks.flatMap((tick, i) => [
    line(left, y(tick), right, y(tick), i === 0 ? 'axis' : 'grid'),
    label(left - 8, y(tick) + 4, yTexts[i], 'muted small end'),
  ])
  const xTexts = thinned(xs, x).map((value) =>
    label(x(value), bottom + 18, formatTick(value), 'muted small middle'),
  )
  const ends = spreadOut(
    lines.map(({ points }) => y(points.at(-1).summary.median)),
    top,
    bottom,
  )
  const drawn = lines.flatMap(({ name, points }, i) => {
    const colour = i % LIGHT.lines.length
    const path = points.map(({ x: value, summary }) => `${at(x(value))},${at(y(summary.median))}`).join(' ')
    const last = points.at(-1)
    return [
      ...points
        .filter(({ summary }) => summary.high > summary.low)
        .map(({ x: value, summary }) =>
          line(x(value), y(summary.low), x(value), y(summary.high), `l${colour}`, 1),
        ),
      `<polyline points="${path}" class="line l${colour}"/>`,
      ...points.map(({ x: value, summary }) => marker(i, x(value), y(summary.median), `f${colour}`)),
      // A label that had to move is joined to the end of its line.
      ...(Math.abs(ends[i] - y(last.summary.median)) > 2
        ? [line(x(last.x) + 5, y(last.summary.median), right + 6, ends[i], `l${colour}`, 0.75)]
        : []),
      label(right + 9, ends[i] + 4.5, shortened(name, 240), `f${colour} strong`),
    ]
  })
  const axisTitles = [
    label((left + right) / 2, bottom + 38, xLabel + (logX ? ' (logarithmic)' : ''), 'muted small middle'),
  ]
  return document({
    title,
    subtitle,
    description,
    height: bottom + 38 + PADDING - 4,
    body: [
      ...heading({
        title: `${title}${unit === '' || unit.startsWith('/') ? '' : `, ${unit}`}${logY ? ' (logarithmic)' : ''}`,
        subtitle,
        better,
        rounds,
      }),
      ...grid,
      ...xTexts,
      ...axisTitles,
      ...drawn,
    ],
  })
}

function evenlySpaced(xs) {
  const step = (xs.at(-1) - xs[0]) / (xs.length - 1)
  return xs.length > 2 && xs.every((x, i) => Math.abs(x - xs[0] - i * step) < step / 100)
}

/** The values whose labels do not overlap, always with the first. */
function thinned(xs, x) {
  const shown = []
  let free = -Infinity
  for (const value of xs) {
    const half = widthOf(formatTick(value), 12) / 2 + 5
    if (x(value) - half < free) continue
    shown.push(value)
    free = x(value) + half
  }
  return shown
}

/** Moves labels apart, keeping their order, within the plot. */
function spreadOut(wanted, top, bottom) {
  const order = wanted.map((y, i) => ({ y, i })).sort((a, b) => a.y - b.y)
  for (let i = 1; i < order.length; i += 1) order[i].y = Math.max(order[i].y, order[i - 1].y + LABEL_HEIGHT)
  const excess = Math.max(0, (order.at(-1)?.y ?? 0) - bottom)
  let limit = bottom
  if (excess > 0)
    for (const one of order.toReversed()) {
      one.y = Math.max(top, Math.min(one.y, limit))
      limit = one.y - LABEL_HEIGHT
    }
  return order.toSorted((a, b) => a.i - b.i).map(({ y }) => y)
}

function marker(i, x, y, classes) {
  const [a, b] = [at(x), at(y)]
  switch (i % 4) {
    case 0:
      return `<circle cx="${a}" cy="${b}" r="4" class="${classes}"/>`
    case 1:
      return `<rect x="${at(a - 3.5)}" y="${at(b - 3.5)}" width="7" height="7" class="${classes}"/>`
    case 2:
      return `<path d="M${a} ${at(b - 5)}l5 8.5h-10z" class="${classes}"/>`
    default:
      return `<path d="M${a} ${at(b - 5)}l5 5-5 5-5-5z" class="${classes}"/>`
  }
}
