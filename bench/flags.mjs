import { parseArgs } from 'node:util'

export const USAGE = `npm start -- [flags]

  --rows n          rows of one drain (200000)
  --rounds n        how often each side runs, in turn (3)
  --only a,b        only these systems: leasehold, graphile-worker, pg-boss
  --neighbours      graphile-worker with other settings beside its best
  --ordered         also: leasehold with an ordering key for every 20 events
  --poison          also: leasehold with half of the rows stuck behind one failing event
  --dist dir        the build of leasehold that is measured (../dist)
  --against dir     also: leasehold from this other build
  --profile dir     write a CPU profile of each leasehold process there, and say which statements the server spent
                    its time on; slower, so its rows/s mean nothing
  --json file       write everything that was measured there
  --timeout s       the most that one part of one side may take (300)
`

export function readFlags(args) {
  const { values } = parseArgs({
    args,
    options: {
      rows: { type: 'string', default: '200000' },
      rounds: { type: 'string', default: '3' },
      only: { type: 'string' },
      neighbours: { type: 'boolean', default: false },
      ordered: { type: 'boolean', default: false },
      poison: { type: 'boolean', default: false },
      dist: { type: 'string' },
      against: { type: 'string' },
      profile: { type: 'string' },
      json: { type: 'string' },
      timeout: { type: 'string', default: '300' },
      help: { type: 'boolean', default: false },
    },
  })
  const rows = whole('rows', values.rows)
  if (rows % 40 !== 0)
    throw new Error(`--rows ${rows}: give a multiple of 40, for keys of 20 events in halves`)
  return {
    ...values,
    rows,
    rounds: whole('rounds', values.rounds),
    timeoutMs: whole('timeout', values.timeout) * 1_000,
    only: values.only?.split(','),
  }
}

function whole(name, text) {
  const value = Number(text)
  if (Number.isInteger(value) && value >= 1) return value
  throw new Error(`--${name} ${text}: give a whole number from 1`)
}
