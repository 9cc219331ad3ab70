// The page docs/benchmarks.md: the template, filled with the record of one run.
import { chartsOf, isOwn, metricsOf } from './charts.mjs'
import { formatAgainst, formatFigure, median, ratioWithinRounds, summary } from './figures.mjs'
import { verdictOf } from '../goals.mjs'
import { publishable } from './record.mjs'

/** Where the charts are, relative to the page. */
const CHARTS = 'benchmarks'

/** Systems that do the same job. Other sides (a plain table, a bare loop, the ceiling of the server) are yardsticks. */
const PEERS = ['graphile-worker', 'pg-boss', 'bullmq', '@nestjs/outbox', 'pgque']

const isPeer = (side) => PEERS.some((peer) => side.toLowerCase().startsWith(peer))

/** `{ page, charts: [{ file, svg }], unexplained }`. `explanations`: see explanations.mjs. */
export function writePage(record, template, explanations = {}) {
  const charts = record.scenarios.map((scenario) => chartsOf(scenario))
  const goals = goalsOf(record, explanations)
  const filled = {
    run: runSentence(record),
    warning: warningOf(record),
    count: countOf(goals),
    goals: goalsTable(goals),
    losses: lossesOf(record),
    scenarios: record.scenarios.map((scenario, i) => section(scenario, charts[i], goals)).join('\n\n'),
    commit: record.commit ?? '(the commit is not known)',
    flags: flagsOf(record),
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
    unexplained: goals.filter(({ isUnexplained }) => isUnexplained).map(({ text }) => text),
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

const unmeasured = ({ error, skipped }) => error ?? skipped

/** `--second-edition` takes a directory that another reader has elsewhere. */
function flagsOf({ size, rounds, secondEdition }) {
  return [
    ...(size === 'short' ? ['--short'] : []),
    `--rounds ${rounds}`,
    ...(secondEdition === undefined ? [] : ['--second-edition ../../second-edition']),
  ].join(' ')
}

/** Every goal with its figure, its verdict, and the reason where there is one to give. */
function goalsOf(record, explanations) {
  const unknown = Object.keys(explanations).find((id) => !record.goals.some((goal) => goal.id === id))
  if (unknown !== undefined) throw new Error(`explanations.mjs: there is no goal "${unknown}"`)
  return record.goals.map((goal) => {
    const scenario = record.scenarios.find(({ name }) => name === goal.scenario)
    const check = scenario?.checks?.find((one) => one.goal === goal.id)
    const verdict = verdictOf(goal, check, record)
    const written = explanations[goal.id]
    const problem =
      scenario === undefined ? (goal.unavailable ?? 'not part of this run') : unmeasured(scenario)
    const reasons = {
      missed: written ?? 'Not explained yet.',
      stated: written ?? '',
      'not measured': sentence(withFullStop(problem ?? 'no figures')),
    }
    return {
      ...goal,
      title: scenario?.title,
      figure: measured(goal, check),
      against: check?.against ?? '–',
      verdict,
      why: reasons[verdict] ?? '',
      isUnexplained: verdict === 'missed' && written === undefined,
    }
  })
}

const VERDICTS = ['met', 'missed', 'stated', 'not judged', 'not measured']

function countOf(goals) {
  const parts = VERDICTS.map((verdict) => [goals.filter((goal) => goal.verdict === verdict).length, verdict])
    .filter(([count]) => count > 0)
    .map(([count, verdict]) => `${count} ${verdict}`)
  return `${sentence(parts.join(', '))}.`
}

function goalsTable(goals) {
  const rows = goals.map(({ text, title, figure, against, verdict, why }) => [
    title === undefined ? text : link(title, text),
    figure,
    against,
    emphasized(verdict),
    why,
  ])
  return table(['goal', 'measured', 'compared with', '', 'why'], rows)
}

const emphasized = (verdict) => (verdict === 'missed' ? '**missed**' : verdict)

const withUnit = (number, unit = '') =>
  unit === '' || unit.startsWith('/') ? `${number}${unit}` : `${number} ${unit}`

/** The figure of a goal. */
export function measured({ limit, unit }, check) {
  if (!Number.isFinite(check?.ratio)) return '–'
  return withUnit(formatAgainst(check.ratio, limit ?? 1), unit)
}

/** Every figure in which a peer is ahead, whatever the goals say. */
function lossesOf(record) {
  const ahead = record.scenarios.flatMap(peersAhead)
  return ahead.length === 0 ? 'In no figure.' : table(AHEAD, ahead)
}

const AHEAD = ['scenario', 'figure', 'peer', 'the peer', 'Leasehold', 'of Leasehold']

/** The median of the ratios within rounds decides, as everywhere. */
function peersAhead(scenario) {
  return metricsOf(scenario).flatMap(({ name, unit, better, series }) => {
    if (better === undefined) return []
    return series
      .filter(({ side }) => isPeer(side))
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
const ownOf = (series, { variant }) => series.find((one) => isOwn(one.side) && one.variant === variant)

function section(scenario, charts, goals) {
  const { title, remarks = [], name } = scenario
  const problem = unmeasured(scenario)
  return [
    `### ${title ?? name}`,
    goals
      .filter((goal) => goal.scenario === name)
      .map(({ text, how }) => `- **${text}**: ${withFullStop(how)}`)
      .join('\n'),
    ...(problem ? [`Not measured: ${withFullStop(problem)}`] : []),
    ...charts.map(({ file, alt }) => `![${alt.replaceAll(/[[\]]/g, '')}](${CHARTS}/${file})`),
    ...(scenario.series?.length > 0 ? [seriesTable(scenario)] : []),
    ...(remarks.length > 0 ? [remarks.map((remark) => `- ${oneLine(remark)}`).join('\n')] : []),
  ].join('\n\n')
}

function seriesTable(scenario) {
  const hasVariants = scenario.series.some(({ variant }) => variant)
  const hasRatios = scenario.series.some(({ side }) => !isOwn(side))
  const hasSpread = scenario.series.some(({ values }) => values.length > 1)
  const rows = metricsOf(scenario).flatMap(({ name, unit, better, series }) => {
    return series.map((figure, i) => {
      const { side, variant = '', values } = figure
      const found = summary(values)
      const own = isOwn(side) ? undefined : ownOf(series, figure)
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

function setupTables({ versions, secondEdition, settings, machine }) {
  const rows = (object) => Object.entries(object).map(([name, value]) => [name, String(value)])
  return [
    table(
      ['version', ''],
      [
        ...rows(versions),
        ...(secondEdition === undefined ? [] : [['Leasehold, second edition', secondEdition]]),
      ],
    ),
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
function link(title, text) {
  const anchor = title
    .toLowerCase()
    .replaceAll(/[^\p{L}\p{N} _-]/gu, '')
    .replaceAll(' ', '-')
  return `[${text}](#${anchor})`
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
