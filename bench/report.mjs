// What was measured, as Markdown tables. The record of a run has every reading.
import { median } from './report/figures.mjs'
import { SCENARIOS } from './scenarios.mjs'

export { median } from './report/figures.mjs'

const FIGURES = [
  'serverMicroseconds',
  'nodeMicroseconds',
  'writeServerMicroseconds',
  'writeWalBytes',
  'drainWalBytes',
  'diskBytes',
  'heapBytes',
  'statementsPerThousand',
  'hotShare',
]

/** For each scenario and side: the median of each figure, and ratios, which are taken within a round. */
export function summarise(readings, { sides, scenarios }) {
  const of = (scenario, side) => readings.filter((one) => one.scenario === scenario && one.side === side)
  return scenarios.flatMap((scenario) =>
    sides.flatMap(({ name: side }) => {
      const own = of(scenario, side)
      if (own.length === 0) return []
      const ratio = (others, field) =>
        median(own.map((one) => one[field] / others.find(({ round }) => round === one.round)?.[field]))
      const first = of(scenario, sides[0].name)
      const { relativeTo } = SCENARIOS[scenario]
      const rates = own.map(({ perSecond }) => perSecond)
      return {
        scenario,
        side,
        rounds: own.length,
        perSecond: median(rates),
        slowest: Math.min(...rates),
        fastest: Math.max(...rates),
        ofFirstSide: ratio(first, 'perSecond'),
        serverTimeOfFirstSide: ratio(first, 'serverMicroseconds'),
        relativeTo,
        ofRelatedScenario: relativeTo && ratio(of(relativeTo, side), 'perSecond'),
        ...Object.fromEntries(FIGURES.map((field) => [field, median(own.map((one) => one[field]))])),
        livePercentAfterVacuum: median(own.map(({ afterVacuum }) => afterVacuum?.livePercent)),
      }
    }),
  )
}

const fixed = (value, digits = 0) => (value === undefined ? '–' : value.toFixed(digits))
const thousands = (value) => `${(value / 1_000).toFixed(1)}k`

export function summaryTable(summary, firstSide) {
  return markdown(
    [
      'scenario',
      'side',
      'events/s',
      'spread',
      `of ${firstSide}`,
      `server CPU of ${firstSide}`,
      'of own other scenario',
      'server µs',
      'Node µs',
      'server µs, writing',
      'WAL bytes, writing',
      'WAL bytes, drain',
      'disk bytes',
      'heap bytes',
      'heap live % after VACUUM',
      'statements per 1,000',
      'HOT %',
    ],
    summary.map((one) => [
      SCENARIOS[one.scenario].title,
      one.side,
      thousands(one.perSecond),
      `${thousands(one.slowest)}–${thousands(one.fastest)}`,
      fixed(one.ofFirstSide, 2),
      fixed(one.serverTimeOfFirstSide, 2),
      one.ofRelatedScenario === undefined ? '–' : `${fixed(one.ofRelatedScenario, 2)} of ${one.relativeTo}`,
      fixed(one.serverMicroseconds, 1),
      fixed(one.nodeMicroseconds, 1),
      fixed(one.writeServerMicroseconds, 1),
      fixed(one.writeWalBytes),
      fixed(one.drainWalBytes),
      fixed(one.diskBytes),
      fixed(one.heapBytes),
      fixed(one.livePercentAfterVacuum),
      fixed(one.statementsPerThousand, 1),
      one.hotShare === undefined ? '–' : fixed(one.hotShare * 100),
    ]),
  )
}

/** How rate, claim time and latency develop under a held snapshot: one table for each reading. */
export function windowTables(readings) {
  return readings
    .filter(({ windows }) => windows !== undefined)
    .map(({ round, scenario, side, windows, probeMsBefore, probeMs }) => {
      const table = markdown(
        [
          'events',
          'events/s',
          'claim ms: mean, p99, max',
          'heaviest statement: mean ms, calls',
          'latency ms: p50, p99, max',
        ],
        windows.map(({ events, perSecond, claimMs, heaviest, latencyMs }) => [
          String(events),
          thousands(perSecond),
          claimMs ? `${fixed(claimMs.mean, 1)}, ${fixed(claimMs.p99, 1)}, ${fixed(claimMs.max, 1)}` : '–',
          heaviest ? `${fixed(heaviest.meanMs, 2)}, ${heaviest.calls}` : '–',
          scenario.includes('live') && latencyMs
            ? `${fixed(latencyMs.p50)}, ${fixed(latencyMs.p99)}, ${fixed(latencyMs.max)}`
            : '–',
        ]),
      )
      const probe = ({ p50, p99, max }) => `${fixed(p50, 1)}, ${fixed(p99, 1)}, ${fixed(max, 1)}`
      return [
        `${SCENARIOS[scenario].title}: ${side}, round ${round}`,
        table,
        `A single event, ms from INSERT to handler (p50, p99, max): ${probe(probeMsBefore)} before; ${probe(probeMs)} after`,
      ].join('\n\n')
    })
}

function markdown(head, rows) {
  const row = (cells) => `| ${cells.join(' | ')} |`
  return [row(head), row(head.map(() => '---')), ...rows.map(row)].join('\n')
}
