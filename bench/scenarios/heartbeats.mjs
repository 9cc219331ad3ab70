// Ten thousand rows in flight whose handlers wait: what their renewal costs, in statements and in throughput.
import { withClient } from '../client.mjs'
import { resetStatements } from '../counters.mjs'
import { TYPES } from '../event-types.mjs'
import { insertEvents, verifyPublished, withOutbox } from '../outbox-database.mjs'
import { boundCheck, measureInTurns, ratioCheck, seriesOf } from '../rounds.mjs'
import { measureWal, prepareWal } from '../wal.mjs'

const HOUR_MS = 3_600_000
/** No renewal falls into a drain; the rows are in flight all the same. */
const NONE = { variant: 'no renewal', leaseMs: HOUR_MS }
const DEFAULT = { variant: 'every 9 s (lease 30 s, the default)', leaseMs: 30_000 }
const TENFOLD = { variant: 'every 0.9 s (lease 3 s)', leaseMs: 3_000 }
const TIMES_AS_OFTEN = 10

export const scenario = {
  name: 'heartbeats',
  title: '10,000 rows in flight with heartbeats',

  async run({ server, build, quick, sized, rounds, print, signal, timeoutMs }) {
    const rows = sized({ quick: 1_000, short: 10_000, full: 10_000 })
    const events = sized({ quick: 3_000, short: 100_000, full: 500_000 })
    const beats = sized({ quick: 2, short: 2, full: 10 })
    const remarks = [
      `${rows} events whose handlers wait are in flight in one relay. A second relay in the same process, on another outbox of the same server, drains ${events} events without keys that were written before.`,
      'Only the lease of the waiting rows differs, and with it the interval of their renewal. A heartbeat cannot be switched off; with a lease of an hour, none falls into the drain.',
      'Two per cent are less than the rates differ from one drain to the next. So the drain is also measured with ten times as many heartbeats as by default; a tenth of that loss is the loss by default.',
      `Statements and HOT updates are counted over ${beats} further heartbeats, with nothing else to do; the updates in the WAL, which includes those by which the process shows that it is alive. One statement per beat: each statement has renewed all rows.`,
    ]
    const sides = (quick ? [NONE, TENFOLD] : [NONE, DEFAULT, TENFOLD]).map((side) => ({
      ...side,
      name: 'leasehold',
    }))
    const readings = await measureInTurns(
      { sides, rounds, print, signal, remarks, title: 'heartbeats', nameOf: ({ variant }) => variant },
      async (side) => measure({ server, build, rows, events, beats, ...side, timeoutMs }),
    )
    const of = ({ variant }, figure) =>
      [...readings].find(([side]) => side.variant === variant)?.[1].map((reading) => reading[figure])
    const [without, often] = [of(NONE, 'perSecond'), of(TENFOLD, 'perSecond')]
    const aTenthOfTheLoss = often?.map((perSecond, i) => 1 - (1 - perSecond / without?.[i]) / TIMES_AS_OFTEN)
    return {
      series: seriesOf(readings, METRICS),
      checks: [
        ...boundCheck(
          'heartbeat-statements',
          [DEFAULT, TENFOLD].flatMap((side) => of(side, 'statementsPerBeat') ?? []),
        ),
        ...ratioCheck('heartbeat-cost', [
          { of: aTenthOfTheLoss, to: without?.map(() => 1), against: `leasehold, ${NONE.variant}` },
        ]),
      ],
      remarks,
    }
  },
}

const METRICS = [
  {
    figure: 'perSecond',
    metric: 'events per second of the second relay',
    unit: '/s',
    better: 'higher',
  },
  { figure: 'statementsPerBeat', metric: 'statements per heartbeat', unit: '', better: 'lower' },
  { figure: 'hotPercent', metric: 'HOT share of the renewals', unit: '%', better: 'higher' },
  { figure: 'statementMs', metric: 'server time of one heartbeat', unit: 'ms', better: 'lower' },
  { figure: 'walBytes', metric: 'WAL bytes of one renewal of a row', unit: 'bytes', better: 'lower' },
]

async function measure({ server, build, rows, events, beats, leaseMs, timeoutMs }) {
  const common = { server, build, timeoutMs }
  const scenario = { keys: 'none', written: 'one by one' }
  return withOutbox(common, async ({ url, startRelay }) =>
    withOutbox({ ...common, scenario, events }, async (second) => {
      await second.part('write')
      await server.vacuum(second.url)
      await insertEvents(url, { type: TYPES.waiting, count: rows })
      await server.vacuum(url)

      const relay = await startRelay()
      // Without prefetch, and held for as long as the drain takes.
      const settings = { concurrency: rows, prefetch: 0, leaseMs, maxLeases: 10_000 }
      await relay.call('start', 'waiting', { url, settings })
      await relay.call('untilWaiting', 'waiting', rows)
      const before = await relay.call('renewals', 'waiting')
      const drained = await relay.call('drain', 'second', { url: second.url, events, serverPid: server.pid })
      const after = await relay.call('renewals', 'waiting')
      await relay.call('stop', 'second')
      await verifyPublished(second.url, events)
      return {
        perSecond: (events / drained.ms) * 1_000,
        serverMicroseconds: (drained.serverCpuMs * 1_000) / events,
        nodeMicroseconds: (drained.nodeCpuMs * 1_000) / events,
        renewalsInDrain: after - before,
        ...(leaseMs < HOUR_MS ? await countBeats({ url, relay, rows, beats }) : {}),
      }
    }),
  )
}

/** Counts what the server did during the next heartbeats, with nothing else to do. */
async function countBeats({ url, relay, rows, beats }) {
  await prepareWal(url)
  // Between two heartbeats.
  await relay.call('afterRenewal', 'waiting')
  await withClient(url, resetStatements)
  const { updates, hotUpdates, bytes } = await measureWal(url, async () => {
    for (let i = 0; i < beats; i += 1) await relay.call('afterRenewal', 'waiting')
  })
  const { rows: counted } = await withClient(url, async (client) => client.query(RENEWALS))
  const [{ calls, ms }] = counted
  if (calls === 0) throw new Error('no renewal was counted')
  const allRenewed = updates / rows
  return {
    statementsPerBeat: Math.round((calls / allRenewed) * 100) / 100,
    hotPercent: (hotUpdates / updates) * 100,
    statementMs: ms / allRenewed,
    walBytes: bytes / updates,
  }
}

/** With nothing else to do, only renewals change rows of the outbox. */
const RENEWALS = `select coalesce(sum(calls), 0)::int as calls, coalesce(sum(total_exec_time), 0) as ms
  from pg_stat_statements where rows > 0 and query ~ 'update \\S*outbox' and query not like '%pg_stat_statements%'
    and dbid = (select oid from pg_database where datname = current_database())`
