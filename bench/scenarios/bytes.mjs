// What an event costs the server, whatever the machine: WAL, disk, statements, index entries, HOT updates, fill of pages.
import { withClient } from '../client.mjs'
import { readDisk, readStatements, readUpdates, resetStatements } from '../counters.mjs'
import { leaseholdSide, peer } from '../peers.mjs'
import { withOutbox, withSide } from '../outbox-database.mjs'
import { measureInTurns, ratioCheck, seriesOf } from '../rounds.mjs'
import { openSide } from '../sides/index.mjs'
import { measureWal, prepareWal } from '../wal.mjs'

const PEERS = ['graphile-worker', 'pg-boss']
const OWN = 'leasehold'
const VARIANTS = [
  { title: '0.2 KB, no key', payloadBytes: 200, keys: 'none' },
  { title: '0.2 KB, 10,000 keys', payloadBytes: 200, keys: 'many' },
  { title: '1 KB, no key', payloadBytes: 1_000, keys: 'none' },
  { title: '1 KB, 10,000 keys', payloadBytes: 1_000, keys: 'many' },
]
/** Both updates of an event leave a dead version, and autovacuum comes when 2 % of the rows are dead. */
const FILL_PORTIONS = 50

const METRICS = [
  { figure: 'walBytes', metric: 'WAL bytes per event, written and drained', unit: 'bytes', better: 'lower' },
  { figure: 'writeWalBytes', metric: 'WAL bytes per event, writing', unit: 'bytes', better: 'lower' },
  { figure: 'drainWalBytes', metric: 'WAL bytes per event, drain', unit: 'bytes', better: 'lower' },
  { figure: 'diskBytes', metric: 'disk bytes per event after the drain', unit: 'bytes', better: 'lower' },
  { figure: 'statementsPerThousand', metric: 'statements per 1,000 events', unit: '', better: 'lower' },
  { figure: 'writeIndexEntries', metric: 'index entries per event, writing', unit: '', better: 'lower' },
  { figure: 'drainIndexEntries', metric: 'index entries per event, drain', unit: '', better: 'lower' },
  { figure: 'hotPercent', metric: 'HOT updates in the drain', unit: '%', better: 'higher' },
]
const FILL_METRICS = [
  { figure: 'livePercent', metric: 'fill of the pages of finished events', unit: '%', better: 'higher' },
  { figure: 'diskBytes', metric: 'disk bytes per finished event', unit: 'bytes', better: 'lower' },
]

export const scenario = {
  name: 'bytes',
  title: 'WAL, disk, statements and index entries of one event',

  async run({ server, build, quick, sized, print, signal, timeoutMs }) {
    const events = sized({ quick: 3_000, short: 10_000, full: 50_000 })
    const variants = quick ? VARIANTS.slice(0, 1) : VARIANTS
    const remarks = [
      `${events} events are written one by one and then drained. WAL is counted without full-page images, whose number depends on checkpoints. Disk bytes are those of all tables of the schema, with indexes and TOAST, before any VACUUM.`,
      'Index entries are counted in the WAL (pg_walinspect): entries that were inserted into leaf pages, with those that split a page.',
      'graphile-worker deletes a job when it is done and keeps no history; Leasehold and pg-boss keep it, with its times. HOT updates of graphile-worker include those of its table of queues.',
      'One round: these figures do not depend on the machine.',
      `Fill: events are written one by one and published in ${FILL_PORTIONS} portions, with a VACUUM after each, about as often as autovacuum comes by the settings of the table. The fill is the share of the table that is taken by live rows in the end.`,
    ]
    const sides = variants.flatMap((variant) => [
      { ...variant, side: OWN, options: sideOptions(leaseholdSide(build), variant.keys) },
      ...PEERS.map((side) => ({ ...variant, side, options: sideOptions(peer(side), variant.keys) })),
      { ...variant, side: OWN, fill: true },
    ])
    const nameOf = ({ title, side, fill = false }) => `${title}: ${side}${fill ? ', fill of pages' : ''}`
    const readings = await measureInTurns(
      { sides, rounds: 1, print, signal, remarks, title: 'bytes', nameOf },
      async (side) => {
        const common = { server, build, events, timeoutMs, ...side }
        return side.fill ? measureFill(common) : measure(common)
      },
    )
    const of = (wanted, figure) =>
      [...readings].find(([one]) => nameOf(one) === nameOf(wanted))?.[1].map((reading) => reading[figure])
    return {
      series: [...readings].flatMap(([{ title, side, fill = false }, own]) =>
        seriesOf(new Map([[{ name: side }, own]]), fill ? FILL_METRICS : METRICS, title),
      ),
      checks: ratioCheck(
        'wal',
        variants.flatMap(({ title }) =>
          PEERS.map((side) => ({
            of: of({ title, side: OWN }, 'walBytes'),
            to: of({ title, side }, 'walBytes'),
            against: `${side}, ${title}`,
          })),
        ),
      ),
      remarks,
    }
  },
}

const sideOptions = ({ system, options }, keys) => ({ system, ...options(keys) })

async function measure({ server, options, side: label, keys, events, payloadBytes, timeoutMs }) {
  const scenario = { keys, written: 'one by one' }
  const side = { ...options, keys }
  const { schema, table } = await openSide(side)
  const common = { server, label, side, scenario, events, keyCount: 10_000, payloadBytes, timeoutMs }
  return withSide(common, async ({ url, part }) => {
    await prepareWal(url)
    await server.checkpoint()
    const writing = await measureWal(url, async () => part('write'))
    await server.vacuum(url)
    await withClient(url, resetStatements)
    const before = await readUpdates(url, schema)
    const draining = await measureWal(url, async () => part('drain'))
    const statements = await withClient(url, readStatements)
    const after = await readUpdates(url, schema)
    const disk = await readDisk(url, schema, table)
    const updates = after.updates - before.updates
    const calls = statements.reduce((sum, one) => sum + one.calls, 0)
    return {
      walBytes: (writing.bytes + draining.bytes) / events,
      writeWalBytes: writing.bytes / events,
      drainWalBytes: draining.bytes / events,
      diskBytes: disk.total / events,
      statementsPerThousand: (calls / events) * 1_000,
      writeIndexEntries: writing.indexEntries / events,
      drainIndexEntries: draining.indexEntries / events,
      hotPercent: updates === 0 ? 0 : ((after.hot - before.hot) / updates) * 100,
    }
  })
}

/** Events come in small portions, as they do in production, and VACUUM keeps pace with them. */
async function measureFill({ server, build, keys, events, payloadBytes, timeoutMs }) {
  const scenario = { keys, written: 'one by one' }
  const options = { server, build, scenario, events, payloadBytes, timeoutMs }
  return withOutbox(options, async ({ url, startRelay }) => {
    const relay = await startRelay()
    await relay.call('start', 'relay', { url })
    const size = events / FILL_PORTIONS
    await withClient(url, async (client) => {
      await client.query('set synchronous_commit = off')
      for (let i = 0; i < FILL_PORTIONS; i += 1) {
        await client.query('call bench.write($1, $2, 0)', [i * size + 1, (i + 1) * size])
        await relay.call('untilSettled', 'relay', (i + 1) * size)
        await client.query('vacuum leasehold.outbox')
      }
    })
    await relay.call('stop', 'relay')
    const disk = await readDisk(url, 'leasehold', 'leasehold.outbox')
    return { livePercent: disk.livePercent, freePercent: disk.freePercent, diskBytes: disk.total / events }
  })
}
