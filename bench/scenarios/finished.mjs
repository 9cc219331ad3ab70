// A table that holds ten million finished events: does the drain of a backlog notice them?
import { insertFinished, verifyPublished, withOutbox } from '../outbox-database.mjs'
import { measureInTurns, ratioCheck, seriesOf } from '../rounds.mjs'

const EMPTY = 'empty table'
const KEY_COUNT = 10_000
const VARIANTS = [
  { title: 'no key', keys: 'none' },
  { title: '10,000 keys', keys: 'many' },
]

const METRICS = [{ figure: 'perSecond', metric: 'events per second', unit: '/s', better: 'higher' }]

export const scenario = {
  name: 'finished',
  title: 'A backlog in a table with many finished events',

  async run({ server, build, quick, sized, rounds, print, signal, timeoutMs }) {
    const finished = sized({ quick: 50_000, short: 2_000_000, full: 10_000_000 })
    const events = sized({ quick: 3_000, short: 40_000, full: 1_000_000 })
    const filled = `${finished} finished events`
    const remarks = [
      `A backlog of ${events} events, written one by one, is drained: in a table that has been empty before, and in a table with ${finished} published events. These are inserted in that state, in bulk; each drain has a copy of that database.`,
    ]
    const common = { server, build, events, keyCount: KEY_COUNT, timeoutMs }
    const readings = await withOutbox({ ...common, label: filled }, async ({ url, database: template }) => {
      await insertFinished(url, { count: finished, keyCount: KEY_COUNT })
      await server.vacuum(url)
      await server.checkpoint()
      const variants = quick ? VARIANTS.slice(-1) : VARIANTS
      const sides = variants.flatMap((variant) => [
        { ...variant, name: 'leasehold', variant: `${variant.title}, ${EMPTY}`, table: EMPTY },
        { ...variant, name: 'leasehold', variant: `${variant.title}, ${filled}`, table: filled, template },
      ])
      return measureInTurns(
        {
          sides,
          rounds,
          print,
          signal,
          remarks,
          title: 'finished',
          nameOf: ({ variant }) => variant,
        },
        async (side) => drain({ ...common, ...side }),
      )
    })
    const of = (title, table) =>
      [...readings]
        .find(([side]) => side.title === title && side.table === table)?.[1]
        .map(({ perSecond }) => perSecond)
    return {
      series: seriesOf(readings, METRICS),
      checks: ratioCheck(
        'finished',
        VARIANTS.map(({ title }) => ({
          of: of(title, filled),
          to: of(title, EMPTY),
          against: `leasehold, ${EMPTY}, ${title}`,
        })),
      ),
      remarks,
    }
  },
}

async function drain({ server, keys, events, ...options }) {
  const scenario = { keys, written: 'one by one' }
  return withOutbox({ server, scenario, events, ...options }, async ({ url, part, startRelay }) => {
    await part('write')
    await server.vacuum(url)
    const relay = await startRelay()
    const { ms, serverCpuMs } = await relay.call('drain', 'relay', { url, events, serverPid: server.pid })
    await relay.call('stop', 'relay')
    await verifyPublished(url, events)
    return { perSecond: (events / ms) * 1_000, serverMicroseconds: (serverCpuMs * 1_000) / events }
  })
}
