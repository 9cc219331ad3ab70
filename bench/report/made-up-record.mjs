// A record for the tests of the report. Nothing in it was measured: every side says so in its name.
import { GOALS } from '../goals.mjs'
import { FORMAT } from './record.mjs'

const OWN = 'leasehold (made up)'
const PEER = 'graphile-worker (made up)'
const OTHER_PEER = 'pg-boss (made up)'
const YARDSTICK = 'plain table (made up)'

const rate = (side, variant, values) => ({
  side,
  variant,
  metric: 'events per second',
  unit: '/s',
  better: 'higher',
  values,
})
const latency = (side, metric, values) => ({ side, metric, unit: 'ms', better: 'lower', values })
const PORTIONS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
/** `slope`: how much slower each portion is than the one before it. */
const inPortions = (variant, first, slope) => ({
  ...rate(OWN, variant, [first, first]),
  details: { portions: [first, first].map((start) => PORTIONS.map((n) => start - slope * n)) },
})
const grown = (side, processes, values) =>
  rate(side, `${processes} process${processes === 1 ? '' : 'es'}`, values)

export const MADE_UP_RECORD = {
  format: FORMAT,
  at: '2001-02-03T04:05:06.000Z',
  quick: false,
  rounds: 3,
  commit: 'abcdef0',
  uncommittedChanges: false,
  goals: GOALS,
  leasehold: '0.0.0 (made up)',
  versions: { PostgreSQL: '0.0 (made up)', Node: '0.0 (made up)', 'graphile-worker': '0.0 (made up)' },
  settings: { fsync: 'on', shared_buffers: '1MB' },
  machine: { cpu: 'a made-up processor', cores: 3, memory: '1 GiB', system: 'none' },
  scenarios: [
    {
      name: 'drain',
      title: 'Draining a backlog (made up)',
      seconds: 1,
      series: [
        rate(OWN, 'no key', [40_000, 41_000, 39_500]),
        rate(PEER, 'no key', [30_000, 33_000, 29_000]),
        rate(OTHER_PEER, 'no key', [9_000, 8_000, 9_500]),
        rate(YARDSTICK, 'no key', [60_000, 61_000, 62_000]),
        rate(OWN, '10,000 keys', [20_000, 26_000, 21_000]),
        rate(PEER, '10,000 keys', [12_000, 11_500, 12_200]),
        rate(OTHER_PEER, '10,000 keys', [null, null, null]),
        rate(OWN, 'one hot key', [9_000, 9_100, 9_200]),
        rate(PEER, 'one hot key', [400, 410, 405]),
      ],
      checks: [
        { goal: 'drain', ratio: 1.4996, against: PEER },
        { goal: 'drain-hot', ratio: 22.5, against: PEER },
      ],
      remarks: ['pg-boss (made up): keys | are not measured.\nIt says so here.'],
    },
    {
      name: 'latency',
      title: 'Idle latency (made up)',
      seconds: 1,
      series: [
        latency(OWN, 'p50', [2.1, 2.2, 2.05]),
        latency(PEER, 'p50', [1.4, 1.5, 1.45]),
        latency(OWN, 'p99', [4.4, 4.1, 4.2]),
        latency(PEER, 'p99', [9.4, 7.1, 8.2]),
      ],
      checks: [
        { goal: 'latency-p50', ratio: 1.47, against: PEER },
        { goal: 'latency-p99', ratio: 0.51, against: PEER },
      ],
      remarks: [],
    },
    {
      name: 'held-snapshot',
      title: 'Under a held snapshot (made up)',
      seconds: 1,
      series: [
        inPortions('no key', 40_000, 200),
        inPortions('10,000 keys', 22_000, 600),
        inPortions('one hot key', 21_000, 640),
      ],
      checks: [
        { goal: 'held', ratio: 0.97 },
        { goal: 'held-hot', ratio: 0.31 },
      ],
      remarks: [],
    },
    {
      name: 'memory',
      title: 'Memory with a backlog (made up)',
      seconds: 1,
      series: [
        { side: OWN, metric: 'resident memory', unit: 'MB', better: 'lower', values: [120, 121, 119] },
      ],
      checks: [{ goal: 'memory', ratio: 120 }],
      remarks: [],
    },
    {
      name: 'webhooks',
      title: 'Webhooks (made up)',
      error: 'the receiver did not start',
    },
    {
      name: 'growth',
      title: 'Growth (made up)',
      seconds: 1,
      series: [
        grown(OWN, 1, [20_000, 21_000, 19_000]),
        grown(OWN, 2, [34_000, 36_000, 33_000]),
        grown(OWN, 4, [41_000, 45_000, 40_000]),
        grown(OWN, 8, [40_000, 44_000, 37_000]),
        grown(PEER, 1, [15_000, 16_000, 14_500]),
        grown(PEER, 2, [22_000, 22_500, 21_000]),
        grown(PEER, 4, [21_000, 22_000, 20_500]),
        grown(PEER, 8, [16_000, 17_000, 15_000]),
      ],
      checks: [],
      remarks: ['Processes share the cores.'],
    },
    { name: 'idle', skipped: 'the run was stopped before it' },
  ],
}
