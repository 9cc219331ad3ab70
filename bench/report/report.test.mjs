import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { chartsOf, sizeOf } from './charts.mjs'
import { formatAgainst, formatFigure, median, ratioWithinRounds, summary } from './figures.mjs'
import { EXPLANATIONS } from './explanations.mjs'
import { GOALS } from '../goals.mjs'
import { MADE_UP_RECORD } from './made-up-record.mjs'
import { writePage } from './page.mjs'
import { checkRecord } from './record.mjs'
import { report, writeReport } from './report.mjs'
import { barChart, lineChart, ticksUpTo } from './svg.mjs'

const template = await readFile(new URL('template.md', import.meta.url), 'utf8')

async function temporaryDirectory() {
  const directory = await mkdtemp(join(tmpdir(), 'leasehold-report-'))
  onTestFinished(async () => rm(directory, { recursive: true }))
  return directory
}

const scenarioOf = (record, name) => record.scenarios.find((one) => one.name === name)

/** A copy to change. */
const copy = () => structuredClone(MADE_UP_RECORD)

describe('figures', () => {
  it('a ratio is the median of the ratios within rounds, not the ratio of the medians', () => {
    // The machine was three times as fast in the second round. Ratio of the medians: 2.
    expect(ratioWithinRounds([10, 30, 20], [5, 10, 40])).toBe(2)
    expect(ratioWithinRounds([10, 60, 12], [10, 30, 10])).toBeCloseTo(1.2)
    expect(median([10, 60, 12]) / median([10, 30, 10])).toBeCloseTo(1.2)
    expect(ratioWithinRounds([10, 10], [10]), 'rounds without a partner').toBeUndefined()
    expect(ratioWithinRounds([-1], [2]), 'a growth, say').toBeUndefined()
  })

  it('a round without a figure is left out', () => {
    expect(summary([null, 3, 1])).toEqual({ median: 2, low: 1, high: 3, rounds: 2 })
    expect(summary([null, null])).toBeUndefined()
  })

  it('a ratio is written with as many decimals as show on which side of the limit it is', () => {
    expect(formatAgainst(1.2996, 1.3)).toBe('1.2996')
    expect(formatAgainst(1.3, 1.3)).toBe('1.30')
    expect(formatAgainst(1.12, 1.3)).toBe('1.12')
    expect(formatAgainst(undefined, 1.3)).toBe('–')
  })

  it('figures are written with their unit', () => {
    expect(formatFigure(38_412.4, '/s')).toBe('38,412/s')
    expect(formatFigure(1_234_567, 'bytes')).toBe('1,235,000 bytes')
    expect(formatFigure(0.01234)).toBe('0.0123')
    expect(formatFigure(null, '/s')).toBe('–')
  })
})

describe('the page', () => {
  it('every side of the made-up record is named as made up', () => {
    const sides = MADE_UP_RECORD.scenarios.flatMap(({ series = [] }) => series.map(({ side }) => side))
    expect(sides.length).toBeGreaterThan(10)
    expect(sides.filter((side) => !side.includes('made up'))).toEqual([])
  })

  it('every goal is listed with what was measured, the verdict, and how its figure is computed', () => {
    const { page } = writePage(MADE_UP_RECORD, template)
    const goals = section(page, 'What was reached')
    for (const { text } of GOALS) expect(goals).toContain(text)
    expect(goals).toMatch(
      /graphile-worker\]\(.*\) \| 1\.4996 \| graphile-worker \(made up\) \| \*\*missed\*\* \|/,
    )
    expect(goals).toMatch(/≤ 150 MB\]\(.*\) \| 120 MB \| – \| met \|/)
    expect(goals).toContain(`4 met, 2 missed, 1 stated, ${GOALS.length - 7} not measured.`)
    expect(page).toContain('- **drain, no key: ≥ 1.5 × graphile-worker**: events per second, from the start')
    expect(page).not.toContain('{{')
  })

  it('a goal that was not measured says why', () => {
    const goals = section(writePage(MADE_UP_RECORD, template).page, 'What was reached')
    expect(goals).toMatch(
      /webhooks to a receiver .* \| – \| – \| not measured \| The receiver did not start\. \|/,
    )
    expect(goals).toMatch(/jobs, .* \| – \| – \| not measured \| Leasehold has no jobs yet\. \|/)
    expect(goals).toMatch(/crash .* \| not measured \| Not part of this run\. \|/)
  })

  it('"What we lose at" has every figure in which a peer is ahead', () => {
    const losses = section(writePage(MADE_UP_RECORD, template).page, 'What we lose at')
    expect(losses).toContain(
      '| Idle latency (made up) | p50 | graphile-worker (made up) | 1.45 ms | 2.1 ms | 0.68 |',
    )
    expect(losses, 'we are ahead').not.toContain('p99')
    expect(losses, 'a yardstick is not a peer').not.toContain('plain table')
  })

  it('a missed goal is explained by hand, and one that is not says so', () => {
    const explained = writePage(MADE_UP_RECORD, template, {
      'latency-p50': 'A made-up reason.',
      'latency-p99': 'A reason of another run, in which it was missed.',
    })
    expect(explained.page).toContain('| 1.47 | graphile-worker (made up) | **missed** | A made-up reason. |')
    expect(explained.page).not.toContain('of another run')
    expect(explained.page).toContain('| **missed** | Not explained yet. |')
    expect(explained.unexplained).toEqual(['drain, no key: ≥ 1.5 × graphile-worker'])
    expect(() => writePage(MADE_UP_RECORD, template, { p50: 'A reason.' })).toThrow('there is no goal "p50"')
    expect(() => writePage(MADE_UP_RECORD, template, EXPLANATIONS)).not.toThrow()
  })

  it('a quick run judges nothing, and the page says that it must not be cited', () => {
    const { page } = writePage({ ...copy(), quick: true }, template)
    expect(page).toContain('**Do not cite this page')
    expect(page).toContain('7 not judged')
    expect(page).not.toMatch(/\| (?:met|\*\*missed\*\*) \|/)
  })

  it('text of a scenario cannot break a table', () => {
    const record = copy()
    scenarioOf(record, 'latency').checks[0].against = 'a | b\nc'
    expect(writePage(record, template).page).toContain('| 1.47 | a \\| b c |')
  })

  it('every link leads to a heading of the page or to a chart that was written', () => {
    const { page, charts } = writePage(MADE_UP_RECORD, template)
    const anchors = [...page.matchAll(/^#+ (.*)$/gm)].map(([, heading]) =>
      heading
        .toLowerCase()
        .replaceAll(/[^\p{L}\p{N} _-]/gu, '')
        .replaceAll(' ', '-'),
    )
    const links = [...page.matchAll(/\]\(([^)]+)\)/g)].map(([, target]) => target)
    const known = new Set([
      ...anchors.map((anchor) => `#${anchor}`),
      ...charts.map(({ file }) => `benchmarks/${file}`),
    ])
    expect(links.length).toBeGreaterThan(10)
    expect(links.filter((target) => !known.has(target))).toEqual([])
  })
})

const section = (page, heading) => page.split(`\n## ${heading}\n`)[1].split('\n## ')[0]

describe('a record is refused', () => {
  it.each([
    ['of another format', (record) => (record.format = 0), 'format 2'],
    [
      'with a check of an unknown goal',
      (record) => (record.scenarios[0].checks[0].goal = 'drian'),
      'drain: there is no goal "drian"',
    ],
    [
      'with a series without values',
      (record) => delete record.scenarios[0].series[0].values,
      'one number for each round',
    ],
    [
      'with an unknown direction',
      (record) => (record.scenarios[0].series[0].better = 'more'),
      'better is "more": give higher or lower',
    ],
  ])('%s', (_, change, message) => {
    const record = copy()
    checkRecord(record)
    change(record)
    expect(() => checkRecord(record)).toThrow(message)
  })
})

describe('charts', () => {
  const chart = (name) => chartsOf(scenarioOf(MADE_UP_RECORD, name))

  it('a metric with several sides gets bars, one at several sizes gets lines, a single figure gets none', () => {
    expect(chart('drain').map(({ file }) => file)).toEqual(['drain-events-per-second.svg'])
    expect(chart('drain')[0].svg).not.toContain('<polyline')
    expect(chart('growth')[0].svg.match(/<polyline/g)).toHaveLength(2)
    expect(chart('held-snapshot')[0].svg.match(/<polyline/g)).toHaveLength(3)
    expect(chart('memory')).toEqual([])
    expect(chart('webhooks')).toEqual([])
  })

  it('portions of the work in the details of a series become one line, however many series have them', () => {
    const portions = [
      [10, 9, 8],
      [11, 10, 9],
    ]
    const one = (variant, values) => ({
      side: 'leasehold (made up)',
      variant,
      metric: 'events per second',
      unit: '/s',
      values,
      details: { line: 'no key', portions },
    })
    const series = [one('no key, first', [10, 11]), one('no key, last', [8, 9])]
    const [{ svg }] = chartsOf({ name: 'made-up', title: 'Made up', series })
    expect(svg.match(/<polyline/g)).toHaveLength(1)
    expect(svg.match(/<circle/g)).toHaveLength(3)
  })

  it.each([
    ['1 process', { x: 1, unit: 'process' }],
    ['10k rows', { x: 10_000, unit: 'rows' }],
    ['10M rows', { x: 10_000_000, unit: 'rows' }],
    ['1,000,000 rows', { x: 1_000_000, unit: 'rows' }],
    ['0.2 KB', { x: 0.2, unit: 'KB' }],
    ['10 MB', { x: 10, unit: 'MB' }],
    ['no key', undefined],
    [undefined, undefined],
  ])('the size of the variant %s', (variant, size) => {
    expect(sizeOf(variant)).toEqual(size)
  })

  it('bars are as long as their medians, and whiskers reach from the lowest to the highest round', () => {
    const bar = (name, median, low, high) => ({ name, own: false, summary: { median, low, high, rounds: 3 } })
    const svg = barChart({
      title: 'made up',
      description: '',
      unit: '',
      rounds: 3,
      groups: [{ name: '', bars: [bar('a', 100, 50, 200), bar('b', 50, 50, 50)] }],
    })
    const widths = [...svg.matchAll(/width="([\d.]+)" height="17"/g)].map(([, width]) => Number(width))
    expect(widths[0] / widths[1]).toBeCloseTo(2, 1)
    const [start] = /<rect x="([\d.]+)"[^>]*height="17"/.exec(svg).slice(1).map(Number)
    const [low, high] = /<line x1="([\d.]+)"[^>]*x2="([\d.]+)"[^>]*class="spread"/
      .exec(svg)
      .slice(1)
      .map(Number)
    expect(low - start).toBeCloseTo(widths[0] / 2, 0)
    expect(high - start).toBeCloseTo(widths[0] * 2, 0)
  })

  it('charts have a text for those who cannot see them, follow the colour scheme, and are well-formed', () => {
    for (const { svg } of MADE_UP_RECORD.scenarios.flatMap(chartsOf)) {
      expect(svg).toContain('<title>')
      expect(svg).toMatch(/<desc>leasehold \(made up\)/)
      expect(svg).toContain('prefers-color-scheme:dark')
      expect(svg).not.toMatch(/NaN|undefined|Infinity/)
      expect(unclosedTags(svg)).toEqual([])
    }
  })

  it('names are escaped', () => {
    const points = [1, 2].map((x) => ({ x, summary: { median: x, low: x, high: x, rounds: 1 } }))
    const lines = [{ name: '<b> & "c"', points }]
    const svg = lineChart({ title: '<i>', description: '', unit: '', xLabel: '&', lines, rounds: 1 })
    expect(svg).toContain('&lt;b&gt; &amp; &quot;c&quot;')
    expect(unclosedTags(svg)).toEqual([])
  })

  it('an axis has round numbers up to the largest value', () => {
    expect(ticksUpTo(61_000)).toEqual([0, 20_000, 40_000, 60_000, 80_000])
    expect(ticksUpTo(0.9)).toEqual([0, 0.2, 0.4, 0.6, 0.8, 1])
    expect(ticksUpTo(0)).toEqual([0, 1])
  })

  /** Tags that are not closed in order. */
  function unclosedTags(svg) {
    const open = []
    for (const [, slash, name, self] of svg.matchAll(/<(\/?)([a-z]+)[^<>]*?(\/?)>/g)) {
      if (slash === '/') {
        if (open.pop() !== name) return [name]
      } else if (self !== '/') open.push(name)
    }
    return open
  }
})

describe('the command', () => {
  it('writes the page and its charts, and removes charts of an earlier report', async () => {
    const out = await temporaryDirectory()
    await writeReport(MADE_UP_RECORD, out, {})
    await writeFile(join(out, 'benchmarks', 'earlier.svg'), '')
    await writeReport(MADE_UP_RECORD, out, {})
    expect((await readdir(join(out, 'benchmarks'))).toSorted()).toEqual([
      'drain-events-per-second.svg',
      'growth-events-per-second.svg',
      'held-snapshot-events-per-second.svg',
      'latency-p50.svg',
      'latency-p99.svg',
    ])
    expect(await readFile(join(out, 'benchmarks.md'), 'utf8')).toMatch(/^# Benchmarks\n/)
  })

  it.each([
    ['of a quick run', { quick: true }],
    ['of code that is not committed', { uncommittedChanges: true }],
  ])('refuses to publish the record %s', async (_, change) => {
    const directory = await temporaryDirectory()
    const file = join(directory, 'run.json')
    await writeFile(file, JSON.stringify({ ...copy(), ...change }))
    await expect(report(['--json', file])).rejects.toThrow('Give --out to write the page elsewhere')
  })

  it('names the file that is missing', async () => {
    await expect(report(['--json', 'no-such-file.json'])).rejects.toThrow('--json no-such-file.json')
    await expect(report([])).rejects.toThrow('--json')
  })
})
