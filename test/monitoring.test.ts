/** The alert rules and the dashboard in docs/monitoring, with the tool by which Prometheus itself reads them. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { text as textOf } from 'node:stream/consumers'
import { fileURLToPath } from 'node:url'
import { describe, expect, it, onTestFinished } from 'vitest'
import { parse, stringify } from 'yaml'
import { ALL_METRICS } from '../src/observe/metrics.ts'
import { createMetrics } from '../src/observe/prometheus.ts'
import { Events } from '../src/worker/events.ts'
import { removeDirectory, temporaryDirectory } from './support/directory.ts'
import { usePromtool } from './support/promtool.ts'
import { emitOneOfEach, oneOfEachGauge } from './support/sample-events.ts'

interface Rule {
  readonly alert: string
  readonly expr: string
  readonly labels: Readonly<Record<string, string>>
  readonly annotations: Readonly<Record<string, string>>
}

interface RuleFile {
  readonly groups: readonly { readonly name: string; readonly rules: readonly Rule[] }[]
}

const ALERTS = new URL('../docs/monitoring/alerts.yml', import.meta.url)
const ruleFile = parse(await readFile(ALERTS, 'utf8')) as RuleFile
const rules = ruleFile.groups.flatMap((group) => group.rules)

interface Panel {
  readonly id: number
  readonly title: string
  readonly type: string
  readonly options?: unknown
  readonly fieldConfig?: { readonly defaults: { readonly custom?: unknown } }
  readonly description?: string
  readonly gridPos: { readonly x: number; readonly y: number; readonly w: number; readonly h: number }
  readonly targets?: readonly { readonly refId: string; readonly expr: string }[]
}

/** Of a variable that lists the values of a label. */
interface Query {
  readonly query: string
}

interface Dashboard {
  readonly panels: readonly Panel[]
  readonly templating: { readonly list: readonly { readonly name: string; readonly query: Query | string }[] }
}

const DASHBOARD = new URL('../docs/monitoring/grafana.json', import.meta.url)
const dashboard = JSON.parse(await readFile(DASHBOARD, 'utf8')) as Dashboard

/** Every expression of the dashboard, with values for the variables that Grafana would fill in. */
const dashboardExpressions = dashboard.panels
  .flatMap(({ targets = [] }) => targets.map(({ expr }) => expr))
  .map((expr) => expr.replaceAll('$__rate_interval', '5m').replaceAll(/"\$(?:table|worker)"/g, '".*"'))

async function fileWith(name: string, text: string): Promise<string> {
  const directory = await temporaryDirectory()
  onTestFinished(async () => removeDirectory(directory))
  const file = join(directory, name)
  await writeFile(file, text)
  return file
}

const GRAFANA = fileURLToPath(new URL('../node_modules/@grafana/schema/dist/types/raw/', import.meta.url))

/** The kinds of panels, by the names of Grafana's own types for their options. */
const KINDS: Readonly<Record<string, string>> = {
  heatmap: 'heatmap',
  'state-timeline': 'statetimeline',
  stat: 'stat',
  table: 'table',
  timeseries: 'timeseries',
}

/** The dashboard as TypeScript, with the types that Grafana generates from its schemas. */
function typedDashboard({ panels, ...rest }: Dashboard): string {
  const kinds = Object.entries(KINDS).map(
    ([, name]) => `import type * as ${name} from '${GRAFANA}composable/${name}/panelcfg/x/types.gen'`,
  )
  const declared = panels.map((panel, i) => {
    const { type, options, fieldConfig } = panel
    if (type === 'row') return `export const row${i}: Json<RowPanel> = ${JSON.stringify(panel)}`
    const kind = KINDS[type] ?? `unknown kind of panel: ${type}`
    const custom = fieldConfig?.defaults.custom
    return [
      `export const panel${i}: Json<Panel> = ${JSON.stringify(panel)}`,
      `export const options${i}: Partial<Json<${kind}.Options>> = ${JSON.stringify(options)}`,
      ...(custom === undefined
        ? []
        : [`export const custom${i}: Partial<Json<${kind}.FieldConfig>> = ${JSON.stringify(custom)}`]),
    ].join('\n')
  })
  return [
    `import type { Dashboard, Panel, RowPanel } from '${GRAFANA}dashboard/x/types.gen'`,
    ...kinds,
    // Grafana has enums where JSON has their values.
    'type Json<T> = T extends string ? `${T}` : T extends number | boolean | null | undefined ? T',
    '  : unknown extends T ? T : T extends object ? { [K in keyof T]: Json<T[K]> } : T',
    `export const dashboard: Json<Omit<Dashboard, 'panels'>> = ${JSON.stringify(rest)}`,
    ...declared,
  ].join('\n')
}

/** What the compiler says of this text; nothing if it is correct. */
async function typeErrors(text: string): Promise<string> {
  const file = await fileWith('dashboard.ts', text)
  const tsc = fileURLToPath(new URL('../node_modules/.bin/tsc', import.meta.url))
  const flags = ['--noEmit', '--strict', '--skipLibCheck', '--ignoreConfig', '--types', '']
  const resolution = ['--module', 'preserve', '--moduleResolution', 'bundler']
  const child = spawn(tsc, [...flags, ...resolution, file], { stdio: ['ignore', 'pipe', 'inherit'] })
  const [output] = await Promise.all([textOf(child.stdout), once(child, 'close')])
  return output
}

const known = new Map(
  ALL_METRICS.flatMap(({ name, kind, labels }) => {
    const names = kind === 'histogram' ? ['_bucket', '_sum', '_count'].map((suffix) => name + suffix) : [name]
    return names.map((each) => [each, { name, labels }] as const)
  }),
)

/** The metrics that an expression reads, without what Prometheus adds to those of histograms. */
function metricsIn(expr: string): string[] {
  return [...expr.matchAll(/\b(?:leasehold|reaper)_\w+/g)].map(
    ([name]) => known.get(name)?.name ?? `unknown: ${name}`,
  )
}

/** The labels that an expression selects or groups by. */
function labelsIn(expr: string): string[] {
  const selected = [...expr.matchAll(/\{([^}]*)\}/g)].flatMap(([, inside = '']) =>
    [...inside.matchAll(/(\w+)\s*(?:=~|!~|!=|=)/g)].map(([, label = '']) => label),
  )
  const grouped = [...expr.matchAll(/\b(?:by|on|without) \(([^)]*)\)/g)].flatMap(([, inside = '']) =>
    inside.split(',').map((label) => label.trim()),
  )
  return [...selected, ...grouped]
}

/** What Prometheus adds itself, and the bucket of a histogram. */
const ADDED_LABELS = ['instance', 'job', 'le']

function unknownLabels(expr: string): string[] {
  const read = metricsIn(expr)
  const ofMetrics = ALL_METRICS.filter(({ name }) => read.includes(name)).flatMap(({ labels }) => labels)
  const allowed = new Set([...ofMetrics, ...ADDED_LABELS])
  return labelsIn(expr).filter((label) => !allowed.has(label))
}

describe('alert rules', () => {
  it('every rule reads metrics and labels that exist, and says what to do', () => {
    for (const { alert, expr, labels, annotations } of rules) {
      expect(
        metricsIn(expr).filter((name) => name.startsWith('unknown')),
        alert,
      ).toEqual([])
      expect(unknownLabels(expr), alert).toEqual([])
      expect(['warning', 'critical'], alert).toContain(labels['severity'])
      expect(Object.keys(annotations).toSorted(), alert).toEqual(['runbook', 'runbook_url', 'summary'])
    }
  })

  it('every rule leads to a section of the runbooks, which names it', async () => {
    const page = await readFile(new URL('../docs/operations/runbooks.md', import.meta.url), 'utf8')
    const sections = page.split(/^## /m).map((text): [string, string] => {
      const [title = ''] = text.split('\n')
      return [
        title
          .toLowerCase()
          .replaceAll(/[^\w ]/g, '')
          .replaceAll(' ', '-'),
        text,
      ]
    })
    const named = new Map(sections)
    for (const { alert, annotations } of rules) {
      const [path, anchor = ''] = (annotations['runbook_url'] ?? '').split('#')
      expect(path, alert).toBe('docs/operations/runbooks.md')
      expect(named.get(anchor), alert).toContain(`\`${alert}\``)
    }
  })

  it('docs/reference/metrics.md names for each metric the alerts that read it', async () => {
    const page = await readFile(new URL('../docs/reference/metrics.md', import.meta.url), 'utf8')
    const rows = [...page.matchAll(/^\| `((?:leasehold|reaper)_\w+)` \|.* \| ([^|]*) \|$/gm)]
    const documented = rows.map(([, name, alerts = '']) => [
      name,
      [...alerts.matchAll(/`(\w+)`/g)].map(([, alert]) => `Leasehold${alert}`),
    ])
    const read = ALL_METRICS.map(({ name }) => [
      name,
      rules.filter(({ expr }) => metricsIn(expr).includes(name)).map(({ alert }) => alert),
    ])
    expect(documented).toEqual(read)
  })
})

/** Samples, one a minute, in the notation of promtool: `0+5x3` is 0 5 10 15, `_` is none. */
type Series = Readonly<Record<string, string>>

interface Scenario {
  readonly series: Series
  readonly at: string
  /** The labels of the alert besides its severity; absent where it must not fire. */
  readonly fires?: Readonly<Record<string, string>>
}

const OUTBOX = 'table="leasehold.outbox"'
const DELIVERIES = 'table="leasehold.webhook_outbox"'
const table = 'leasehold.outbox'

/** A counter that is there from the beginning, one that appears with its first increase, and one that grew long ago. */
function firstIncrease(name: string, labels: Readonly<Record<string, string>> = { table }): Scenario[] {
  const pairs = Object.entries({ worker: 'w1', ...labels }).map(([label, value]) => `${label}="${value}"`)
  const counter = `${name}{${pairs.join()}}`
  return [
    { series: { [counter]: '0x10 1x10' }, at: '12m', fires: labels },
    { series: { [counter]: '_x10 1x10' }, at: '12m', fires: labels },
    { series: { [counter]: '0x5 1x200' }, at: '150m' },
    { series: { [counter]: '0x200' }, at: '150m' },
  ]
}

/** Of a histogram with three buckets: so many observations a minute within the first bound, and in all. */
function buckets(name: string, labels: string, bounds: readonly [string, string], low: number, all: number) {
  return {
    [`${name}_bucket{${labels},le="${bounds[0]}"}`]: `0+${low}x60`,
    [`${name}_bucket{${labels},le="${bounds[1]}"}`]: `0+${all}x60`,
    [`${name}_bucket{${labels},le="+Inf"}`]: `0+${all}x60`,
  }
}

const LATENCY = 'leasehold_end_to_end_latency_seconds'

/** For each alert at least one situation in which it fires, and one in which it does not. */
const SCENARIOS: Readonly<Record<string, readonly Scenario[]>> = {
  LeaseholdNoWorkers: [
    { series: {}, at: '3m', fires: {} },
    { series: { 'leasehold_worker_process_info{worker="w1"}': '1x5 0x10' }, at: '10m', fires: {} },
    { series: { 'leasehold_worker_process_info{worker="w1"}': '1x10' }, at: '5m' },
  ],
  LeaseholdNoReaper: [
    { series: { [`leasehold_reaper_alive{${OUTBOX},instance="a"}`]: '0x10' }, at: '5m', fires: { table } },
    { series: { [`leasehold_reaper_alive{${OUTBOX},instance="a"}`]: '1x10' }, at: '5m' },
  ],
  LeaseholdReaperFailing: [
    {
      series: { 'leasehold_reaper_failures_total{worker="w1"}': '0+1x40' },
      at: '30m',
      fires: { worker: 'w1' },
    },
    { series: { 'leasehold_reaper_failures_total{worker="w1"}': '0x5 1x40' }, at: '12m' },
  ],
  LeaseholdBacklogGrows: [
    {
      series: { [`leasehold_oldest_pending_age_seconds{${OUTBOX}}`]: '0+60x60' },
      at: '40m',
      fires: { table },
    },
    { series: { [`leasehold_oldest_pending_age_seconds{${OUTBOX}}`]: '900-10x60' }, at: '40m' },
    { series: { [`leasehold_oldest_pending_age_seconds{${DELIVERIES}}`]: '0+60x60' }, at: '40m' },
  ],
  LeaseholdNothingClaimed: [
    {
      series: {
        [`leasehold_pending_rows{${OUTBOX}}`]: '5x60',
        [`leasehold_claims_total{${OUTBOX},worker="w1"}`]: '7x60',
      },
      at: '30m',
      fires: { table },
    },
    { series: { [`leasehold_pending_rows{${OUTBOX}}`]: '5x60' }, at: '30m', fires: { table } },
    {
      series: {
        [`leasehold_pending_rows{${OUTBOX}}`]: '5x60',
        [`leasehold_claims_total{${OUTBOX},worker="w1"}`]: '0+1x60',
      },
      at: '30m',
    },
    { series: { [`leasehold_pending_rows{${OUTBOX}}`]: '5x25 0 5x60' }, at: '30m' },
  ],
  LeaseholdDeadRows: firstIncrease('leasehold_dead_rows_total'),
  LeaseholdHandlersFail: [
    {
      series: {
        [`leasehold_handler_failures_total{${OUTBOX},outcome="retry",worker="w1"}`]: '0+30x60',
        [`leasehold_claimed_rows_total{${OUTBOX},worker="w1"}`]: '0+100x60',
      },
      at: '30m',
      fires: { table },
    },
    {
      series: {
        [`leasehold_handler_failures_total{${OUTBOX},outcome="retry",worker="w1"}`]: '0+1x60',
        [`leasehold_claimed_rows_total{${OUTBOX},worker="w1"}`]: '0+100x60',
      },
      at: '30m',
    },
  ],
  LeaseholdKeysParked: [
    { series: { [`leasehold_held_up_keys{${OUTBOX},state="parked"}`]: '2x20' }, at: '10m', fires: { table } },
    {
      series: {
        [`leasehold_held_up_keys{${OUTBOX},state="parked"}`]: '0x20',
        [`leasehold_held_up_keys{${OUTBOX},state="blocked"}`]: '2x20',
      },
      at: '10m',
    },
  ],
  LeaseholdKeysBlocked: [
    {
      series: { [`leasehold_held_up_keys{${OUTBOX},state="blocked"}`]: '1x60' },
      at: '45m',
      fires: { table },
    },
    { series: { [`leasehold_held_up_keys{${OUTBOX},state="blocked"}`]: '1x20 0 1x40' }, at: '45m' },
  ],
  LeaseholdLeasesRecovered: [
    {
      series: {
        [`reaper_recovered_count_total{${OUTBOX},outcome="retry",worker="w1"}`]: '0+10x30',
        [`leasehold_claimed_rows_total{${OUTBOX},worker="w2"}`]: '0+100x30',
      },
      at: '20m',
      fires: { table },
    },
    {
      series: {
        [`reaper_recovered_count_total{${OUTBOX},outcome="retry",worker="w1"}`]: '0+10x30',
        [`leasehold_claimed_rows_total{${OUTBOX},worker="w2"}`]: '0+10000x30',
      },
      at: '20m',
    },
  ],
  LeaseholdReapedLate: [
    {
      series: buckets('reaper_stale_duration_seconds', `${OUTBOX},worker="w1"`, ['60', '120'], 0, 5),
      at: '20m',
      fires: { table },
    },
    {
      series: buckets('reaper_stale_duration_seconds', `${OUTBOX},worker="w1"`, ['10', '120'], 5, 5),
      at: '20m',
    },
  ],
  LeaseholdLeasesLost: firstIncrease('leasehold_lost_leases_total', { table, reason: 'tooLong' }),
  LeaseholdWritesFencedOff: firstIncrease('leasehold_fenced_off_rows_total'),
  LeaseholdHeartbeatFailures: firstIncrease('leasehold_heartbeat_failures_total', { table, worker: 'w1' }),
  LeaseholdDatabaseUnavailable: [
    {
      series: { 'leasehold_database_failures_total{worker="w1"}': '0+5x20' },
      at: '10m',
      fires: { worker: 'w1' },
    },
    { series: { 'leasehold_scrape_errors{instance="a"}': '2x20' }, at: '10m', fires: { instance: 'a' } },
    {
      series: {
        'leasehold_database_failures_total{worker="w1"}': '0x5 3x20',
        'leasehold_scrape_errors{instance="a"}': '0x20',
      },
      at: '12m',
    },
  ],
  LeaseholdDataErrors: firstIncrease('leasehold_data_errors_total', { table, verb: 'claim' }),
  LeaseholdUnexpectedErrors: [
    {
      series: { 'leasehold_unexpected_errors_total{worker="w1"}': '0x10 1x10' },
      at: '12m',
      fires: { worker: 'w1' },
    },
    { series: { 'leasehold_unexpected_errors_total{worker="w1"}': '1x60' }, at: '40m' },
  ],
  LeaseholdOldSnapshot: [
    { series: { leasehold_oldest_snapshot_age_seconds: '1900+60x20' }, at: '10m', fires: {} },
    { series: { leasehold_oldest_snapshot_age_seconds: '0+60x20' }, at: '20m' },
  ],
  LeaseholdWorkerMissing: [
    { series: { 'leasehold_worker_processes{state="missing"}': '1x10' }, at: '5m', fires: {} },
    {
      series: {
        'leasehold_worker_processes{state="missing"}': '0x10',
        'leasehold_worker_processes{state="dead"}': '3x10',
      },
      at: '5m',
    },
  ],
  LeaseholdWorkerDied: [
    { series: { 'leasehold_worker_processes_died_total{worker="w1"}': '0x10 1x10' }, at: '12m', fires: {} },
    { series: { 'leasehold_worker_processes_died_total{worker="w1"}': '1x60' }, at: '40m' },
  ],
  LeaseholdClaimingPaused: [
    {
      series: { [`leasehold_claiming_paused{${OUTBOX},reason="saturated",worker="w1"}`]: '1x30' },
      at: '20m',
      fires: { table, reason: 'saturated' },
    },
    {
      series: {
        [`leasehold_claiming_paused{${OUTBOX},reason="operator",worker="w1"}`]: '1x30',
        [`leasehold_claiming_paused{${OUTBOX},reason="saturated",worker="w1"}`]: '1x5 0x30',
      },
      at: '20m',
    },
  ],
  LeaseholdSlow: [
    { series: buckets(LATENCY, `${OUTBOX},worker="w1"`, ['60', '300'], 0, 5), at: '40m', fires: { table } },
    {
      series: {
        ...buckets(LATENCY, `${OUTBOX},worker="w1"`, ['1', '300'], 5, 5),
        ...buckets(LATENCY, `${DELIVERIES},worker="w1"`, ['60', '300'], 0, 5),
      },
      at: '40m',
    },
  ],
}

it('every alert has a situation in which it fires and one in which it does not', () => {
  expect(Object.keys(SCENARIOS)).toEqual(rules.map(({ alert }) => alert))
  for (const [alert, scenarios] of Object.entries(SCENARIOS)) {
    const fires = scenarios.map((scenario) => scenario.fires !== undefined)
    expect(new Set(fires), alert).toEqual(new Set([true, false]))
  }
})

describe('Prometheus itself', () => {
  const promtool = usePromtool()

  it('Prometheus accepts the rules and the templates of their annotations', async () => {
    const output = await promtool.run(['check', 'rules', '--lint=all', '--lint-fatal', ALERTS.pathname])
    expect(output).toContain(`SUCCESS: ${rules.length} rules found`)
  })

  it('Prometheus accepts every expression of the dashboard', async () => {
    const recorded = dashboardExpressions.map((expr, i) => ({ record: `expression:${i}`, expr }))
    const file = await fileWith(
      'dashboard.yml',
      stringify({ groups: [{ name: 'dashboard', rules: recorded }] }),
    )
    expect(await promtool.run(['check', 'rules', file])).toContain(
      `SUCCESS: ${dashboardExpressions.length} rules found`,
    )
  })

  it('Prometheus accepts /metrics, and has nothing to remark on the names', async () => {
    const events = new Events()
    const metrics = createMetrics(events, { gauges: oneOfEachGauge() })
    emitOneOfEach(events)
    expect(await promtool.run(['check', 'metrics'], await metrics.render())).toBe('')
  })

  it.each(rules.map(({ alert }) => alert))('%s fires when it should, and only then', async (alert) => {
    const { severity = '' } = rules.find((rule) => rule.alert === alert)?.labels ?? {}
    // promtool would compare the texts of the annotations as well; `check rules` has read those.
    const bare = ruleFile.groups.map((group) => ({
      ...group,
      rules: group.rules.map((rule) => ({ ...rule, annotations: {} })),
    }))
    const tests = (SCENARIOS[alert] ?? []).map(({ series, at, fires }, i) => ({
      name: `${alert} ${i}`,
      interval: '1m',
      input_series: Object.entries(series).map(([name, values]) => ({ series: name, values })),
      alert_rule_test: [
        {
          eval_time: at,
          alertname: alert,
          exp_alerts: fires === undefined ? [] : [{ exp_labels: { severity, ...fires } }],
        },
      ],
    }))
    const file = await fileWith('rules.yml', stringify({ groups: bare }))
    const test = await fileWith(
      'test.yml',
      stringify({ rule_files: [file], evaluation_interval: '1m', tests }),
    )
    expect(await promtool.run(['test', 'rules', test])).toContain('SUCCESS')
  })
})

describe('the dashboard', () => {
  it('its expressions read metrics and labels that exist, and show every metric', () => {
    for (const expr of dashboardExpressions) expect(unknownLabels(expr), expr).toEqual([])
    const shown = new Set(dashboardExpressions.flatMap(metricsIn))
    expect(shown).toEqual(new Set(ALL_METRICS.map(({ name }) => name)))
    for (const { query } of dashboard.templating.list) {
      if (typeof query === 'string') continue
      const [, metric = '', label = ''] = /^label_values\((\w+), (\w+)\)$/.exec(query.query) ?? []
      expect(known.get(metric)?.labels, query.query).toContain(label)
    }
  })

  it('everything in it fits the types of Grafana: the dashboard, each panel, and the options of its kind', async () => {
    const errors = await typeErrors(typedDashboard(dashboard))
    expect(errors).toBe('')
  })

  it('an option or a field that Grafana does not know is found', async () => {
    const [, first] = dashboard.panels
    if (first === undefined) throw new Error('no panel')
    const misspelt = { ...first, descripton: 'x', options: { graphMode: 'aera' } }
    const errors = await typeErrors(typedDashboard({ ...dashboard, panels: [misspelt] }))
    expect(errors).toContain('"descripton"\' does not exist')
    expect(errors).toContain(`"aera"' is not assignable`)
  })

  it('every panel has a title, a description and a place of its own', () => {
    const cells = new Set<string>()
    for (const { title, type, description, gridPos, targets = [] } of dashboard.panels) {
      expect(title).not.toBe('')
      expect(description ?? '', title).toMatch(type === 'row' ? /^$/ : /\.$/)
      expect(new Set(targets.map(({ refId }) => refId)).size, title).toBe(targets.length)
      expect(gridPos.x + gridPos.w, title).toBeLessThanOrEqual(24)
      for (let x = gridPos.x; x < gridPos.x + gridPos.w; x += 1) {
        for (let y = gridPos.y; y < gridPos.y + gridPos.h; y += 1) {
          expect(cells.has(`${x} ${y}`), `${title} covers another panel`).toBe(false)
          cells.add(`${x} ${y}`)
        }
      }
    }
    const ids = dashboard.panels.map(({ id }) => id)
    expect(new Set(ids).size).toBe(ids.length)
  })
})
