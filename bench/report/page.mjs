// The page docs/benchmarks.md: the template, filled with the record of one run.
import { chartsOf, isOwn, metricsOf } from './charts.mjs'
import { formatAgainst, formatFigure, median, ratioWithinRounds, summary } from './figures.mjs'
import { COMPARISONS, publishable, verdictOf } from './record.mjs'

/** Where the charts are, relative to the page. */
const CHARTS = 'benchmarks'

/** Systems that do the same job. Other sides (a plain table, a bare loop, the ceiling of the server) are yardsticks. */
const PEERS = ['graphile-worker', 'pg-boss', 'bullmq', '@nestjs/outbox', 'pgque']

const isPeer = (side) => PEERS.some((peer) => side.toLowerCase().startsWith(peer))

/** `{ page, charts: [{ file, svg }], unexplained }`. `explanations`: see explanations.mjs. */
export function writePage(record, template, explanations = []) {
  const charts = record.scenarios.map((scenario) => chartsOf(scenario))
  const losses = lossesOf(record, explanations)
  const filled = {
    run: runSentence(record),
    warning: warningOf(record),
    count: countOf(record),
    checks: checksTable(record),
    losses: losses.text,
    scenarios: record.scenarios.map((scenario, i) => section(scenario, charts[i])).join('\n\n'),
    commit: record.commit ?? '(the commit is not known)',
    flags: `${record.size === 'short' ? '--short ' : ''}--rounds ${record.rounds}`,
    setup: setupTables(record),
  }
  const page = template.replaceAll(/\{\{(\w+)\}\}/g, (placeholder, name) => {
    if (filled[name] === undefined) throw new Error(`the template has ${placeholder}, which nothing fills`)
    return filled[name]
  })
  return {
    // An empty placeholder leaves no hole.
    page: `${page.replaceAll(/\n{3,}/g, '\n\n').trimEnd()}\n`,
    charts: charts.flat(),
    unexplained: losses.unexplained,
  }
}

/** The goals name larger numbers than those that were measured. */
const SHORT_RUN =
  'It was a short run: fewer events and less time than the goals name. The sizes are under each table.'

function runSentence({ at, commit, rounds, size, machine, versions, leasehold }) {
  const day = at.slice(0, 10)
  return `Leasehold ${leasehold} at commit \`${commit ?? 'unknown'}\`, measured on ${day} in ${plural(rounds, 'round')} on ${machine.cores} cores (${machine.cpu}), PostgreSQL ${versions.PostgreSQL}, Node ${versions.Node}.${size === 'short' ? ` ${SHORT_RUN}` : ''}`
}

function warningOf(record) {
  const reason = publishable(record)
  return reason === undefined ? '' : `**Do not cite this page: ${reason}.**`
}

const checksOf = (record) =>
  record.scenarios.flatMap((scenario) => (scenario.checks ?? []).map((check) => ({ scenario, check })))

const unmeasured = ({ error, skipped }) => error ?? skipped

function countOf(record) {
  const verdicts = checksOf(record).map(({ check }) => verdictOf(check))
  const count = (verdict) => verdicts.filter((one) => one === verdict).length
  const missing = record.scenarios.filter(unmeasured).length
  const parts = [
    ...(count('met') > 0 ? [`${count('met')} met`] : []),
    ...(count('missed') > 0 ? [`${count('missed')} missed`] : []),
    ...(count('not judged') > 0 ? [`${count('not judged')} not judged`] : []),
    ...(count('not measured') > 0 ? [`${count('not measured')} not measured`] : []),
    ...(missing > 0 ? [`${plural(missing, 'scenario')} without results`] : []),
  ]
  return parts.length === 0 ? 'Nothing was measured.' : `${sentence(parts.join(', '))}.`
}

function checksTable(record) {
  const rows = record.scenarios.flatMap((scenario) => {
    const name = link(scenario.title ?? scenario.name)
    if (unmeasured(scenario)) return [[name, scenario.reach ?? '–', '–', '–', '–', 'not measured']]
    const checks = scenario.checks ?? []
    if (checks.length === 0) return [[name, scenario.reach ?? '–', 'see the table', '–', '–', '–']]
    return checks.map((check, i) => [
      i === 0 ? name : '',
      check.text,
      measured(check),
      limitOf(check),
      check.against ?? '–',
      emphasized(verdictOf(check)),
    ])
  })
  return table(['scenario', 'goal', 'measured', 'limit', 'compared with', ''], rows)
}

const emphasized = (verdict) => (verdict === 'missed' ? '**missed**' : verdict)

const withUnit = (number, unit = '') =>
  unit === '' || unit.startsWith('/') ? `${number}${unit}` : `${number} ${unit}`

/** The figure of a check. */
export function measured({ ratio, limit, unit }) {
  return Number.isFinite(ratio) ? withUnit(formatAgainst(ratio, limit), unit) : '–'
}

export function limitOf({ limit, comparison, unit }) {
  return `${COMPARISONS[comparison].sign} ${withUnit(limit, unit)}`
}

/** Goals that were missed, and every figure in which a peer is ahead. */
function lossesOf(record, explanations) {
  for (const { scenario: name, check: text } of explanations) {
    const isKnown = checksOf(record).some(
      ({ scenario, check }) => scenario.name === name && check.text === text,
    )
    const wasRun = record.scenarios.some((scenario) => scenario.name === name && !unmeasured(scenario))
    if (wasRun && !isKnown) throw new Error(`explanations.mjs: ${name} has no check "${text}"`)
  }
  const unexplained = []
  /** The goals that were missed for the same reason, by that reason: it is read once. */
  const missed = new Map()
  for (const { scenario, check } of checksOf(record)) {
    if (verdictOf(check) !== 'missed') continue
    const found = explanations.find((one) => one.scenario === scenario.name && one.check === check.text)
    if (found === undefined) unexplained.push(`${scenario.name}: ${check.text}`)
    const why = found?.text ?? 'Not explained yet.'
    const against = check.against === undefined ? '' : ` (compared with ${check.against})`
    const goal = `- **${scenario.title}**: ${check.text}. Measured: ${measured(check)}${against}.`
    missed.set(why, [...(missed.get(why) ?? []), goal])
  }
  const reasons = [...missed].map(([why, goals]) => `${goals.join('\n')}\n\n${why}`)
  const failed = record.scenarios
    .filter(unmeasured)
    .map(
      (scenario) =>
        `- **${scenario.title ?? scenario.name}**: no figures: ${withFullStop(unmeasured(scenario))}`,
    )
  const ahead = record.scenarios.flatMap(peersAhead)
  const judged = checksOf(record).some(({ check }) => check.met !== null)
  const nothing = judged ? 'No goal was missed.' : 'No goal was judged.'
  return {
    unexplained,
    text: [
      ...(missed.size > 0 ? [] : [nothing]),
      ...reasons,
      ...(failed.length > 0 ? [failed.join('\n')] : []),
      ...(ahead.length > 0 ? ['A peer was ahead in these figures:', table(AHEAD, ahead)] : []),
    ].join('\n\n'),
  }
}

const AHEAD = ['scenario', 'figure', 'peer', 'the peer', 'Leasehold', 'of Leasehold']

/** The median of the ratios within rounds decides, as everywhere. */
function peersAhead(scenario) {
  return metricsOf(scenario).flatMap(({ name, unit, better, series }) => {
    if (better === undefined) return []
    return series
      .filter(({ side, values }) => isPeer(side) && values !== undefined)
      .flatMap((peer) => {
        const own = ownOf(series, peer)
        const ratio = own && ratioWithinRounds(peer.values, own.values)
        if (ratio === undefined || (better === 'higher' ? ratio <= 1 : ratio >= 1)) return []
        const figure = (values) => formatFigure(median(values), unit)
        const what = [peer.variant, name].filter(Boolean).join(': ')
        const ours = figure(own.values)
        return [[scenario.title, what, peer.side, figure(peer.values), ours, formatAgainst(ratio, 1)]]
      })
  })
}

/** Leasehold's series of the same variant. */
const ownOf = (series, { variant }) =>
  series.find((one) => isOwn(one.side) && one.variant === variant && one.values !== undefined)

function section(scenario, charts) {
  const { title, reach, remarks = [], name } = scenario
  const problem = unmeasured(scenario)
  return [
    `### ${title ?? name}`,
    ...(reach ? [`Goal: ${withFullStop(reach)}`] : []),
    ...(problem ? [`Not measured: ${withFullStop(problem)}`] : []),
    ...charts.map(({ file, alt }) => `![${alt.replaceAll(/[[\]]/g, '')}](${CHARTS}/${file})`),
    ...(scenario.series?.length > 0 ? [seriesTable(scenario)] : []),
    ...(remarks.length > 0 ? [remarks.map((remark) => `- ${oneLine(remark)}`).join('\n')] : []),
  ].join('\n\n')
}

function seriesTable(scenario) {
  const hasVariants = scenario.series.some(({ variant, points }) => variant || points)
  const hasRatios = scenario.series.some(({ side }) => !isOwn(side))
  const hasSpread = scenario.series.some(({ values = [], points = [] }) =>
    [values, ...points.map((point) => point.values)].some((list) => list.length > 1),
  )
  const rows = metricsOf(scenario).flatMap(({ name, unit, better, series }) => {
    const figures = series.flatMap(figuresOf)
    return figures.map((figure, i) => {
      const { side, variant = '', values } = figure
      const found = summary(values)
      const own = isOwn(side) ? undefined : ownOf(figures, figure)
      return [
        i === 0 ? `${name}${direction(better)}` : '',
        ...(hasVariants ? [variant] : []),
        isOwn(side) ? `**${side}**` : side,
        found ? formatFigure(found.median, unit) : '–',
        ...(hasSpread ? [spreadOf(found, unit)] : []),
        ...(hasRatios ? [own && found ? ratioText(values, own.values) : ''] : []),
      ]
    })
  })
  const head = [
    'figure',
    ...(hasVariants ? ['variant'] : []),
    'side',
    'median',
    ...(hasSpread ? ['lowest – highest'] : []),
    ...(hasRatios ? ['of Leasehold'] : []),
  ]
  return table(head, rows)
}

const SHOWN_POINTS = 4

/** A series with many points has figures for the first and the last of them; the chart shows all. */
function figuresOf(series) {
  const { side, variant, points, xLabel = '' } = series
  if (points === undefined) return [series]
  const shown = points.length > SHOWN_POINTS ? [points[0], points.at(-1)] : points
  return shown.map(({ x, values }) => {
    const size = `${formatFigure(x)} ${x === 1 ? xLabel.replace(/s$/, '') : xLabel}`.trim()
    return { side, variant: [variant, size].filter(Boolean).join(', '), values }
  })
}

const direction = (better) => (better === undefined ? '' : better === 'higher' ? ' ↑' : ' ↓')

function spreadOf(found, unit) {
  if (found === undefined || found.rounds === 1) return '–'
  return found.low === found.high
    ? 'the same in all rounds'
    : `${formatFigure(found.low, '')} – ${formatFigure(found.high, unit)}`
}

function ratioText(values, others) {
  const ratio = ratioWithinRounds(values, others)
  return ratio === undefined ? '–' : formatAgainst(ratio, 1)
}

function setupTables({ versions, settings, machine }) {
  const rows = (object) => Object.entries(object).map(([name, value]) => [name, String(value)])
  return [
    table(['version', ''], rows(versions)),
    table(['PostgreSQL', ''], rows(settings)),
    table(['machine', ''], rows(machine)),
  ].join('\n\n')
}

const oneLine = (text) => String(text).replaceAll(/\s+/g, ' ').trim()
const cell = (text) => oneLine(text).replaceAll('|', '\\|')

export function table(head, rows) {
  const row = (cells) => `| ${cells.map(cell).join(' | ')} |`
  return [row(head), `|${'---|'.repeat(head.length)}`, ...rows.map(row)].join('\n')
}

/** To a heading of this page, as GitHub and npm name them. */
function link(title) {
  const anchor = title
    .toLowerCase()
    .replaceAll(/[^\p{L}\p{N} _-]/gu, '')
    .replaceAll(' ', '-')
  return `[${title}](#${anchor})`
}

const plural = (count, word) => `${count} ${word}${count === 1 ? '' : 's'}`

function withFullStop(text) {
  const line = oneLine(text)
  return /[.!?]$/.test(line) ? line : `${line}.`
}

function sentence(text) {
  const line = oneLine(text)
  return line.charAt(0).toUpperCase() + line.slice(1)
}
