import { openDatabase } from '../../dist/index.js'
import { replay } from '../../dist/outbox/index.js'

const RELAYS = 6
/** What a process says when something is wrong. The storm is not meant to cause any of it. */
const ERRORS = ['trouble', 'dataError', 'databaseLost', 'notListening', 'reaperFailed']

/** Everything at once that can disturb the order of a key, until this many events are committed. */
export function stormFor(events) {
  return {
    name: 'storm',
    title:
      'relays are killed and events are replayed, while many transactions on a few busy keys commit late',
    workers: RELAYS,
    worker: { publishMs: [0, 5] },
    produces: { producers: 8, keys: 40, skew: 2, lateMs: 600, pauseMs: 10 },

    async run(context) {
      const wanted = context.short ? Math.ceil(events / 4) : events
      const db = openDatabase({ url: context.url, maxConnections: 1 })
      context.onEnd(async () => db.close())
      const isOver = () => committedEvents(context) >= wanted

      async function killRelays() {
        while (!isOver()) {
          await context.delay(context.random.between(200, 2_500))
          const relay = context.anyWorker()
          await relay.kill('SIGKILL')
          context.fire('SIGKILL', { worker: relay.id })
          await context.startWorker()
        }
      }

      /** Some of the events that it names are published, some in flight: those are left alone. */
      async function replayEvents() {
        while (!isOver()) {
          await context.delay(context.random.between(50, 400))
          const accepted = context.lines('accepted')
          const rows = [context.random.pick(accepted).row, accepted.at(-1).row]
          context.history.write({ type: 'replay', rows })
          const { changed } = await replay(db, {
            ids: [...new Set(rows)],
            principal: 'storm',
            reason: 'to disturb',
          })
          if (changed > 0) context.fire('replay', { changed })
        }
      }

      await Promise.all([killRelays(), replayEvents()])
    },

    finish(context) {
      const fired = context.lines('fired')
      const kills = fired.filter(({ what }) => what === 'SIGKILL').length
      const replayed = fired.reduce((sum, { changed = 0 }) => sum + changed, 0)
      const rolledBack = context.lines('rolledBack').length
      const what = { kills, replayed, rolledBack }
      const objections = Object.entries(what)
        .filter(([, count]) => count === 0)
        .map(([name]) => ({ rule: 'fired', text: `${name}: 0; the storm was too short` }))
      return { objections, figures: { notes: [JSON.stringify(what), ...errorsOf(context)] } }
    },
  }
}

function committedEvents(context) {
  const committed = new Set(context.lines('committed').map(({ tx }) => tx))
  return context.lines('written').filter(({ tx }) => committed.has(tx)).length
}

/** Each error once, with how often it occurred; and the processes that ended by themselves. */
function errorsOf(context) {
  const counts = new Map()
  const add = (text) => counts.set(text, (counts.get(text) ?? 0) + 1)
  for (const type of ERRORS)
    for (const { what = '', verb = '', error = '' } of context.lines(type))
      add(`${type} ${what} ${verb} ${error}`)
  for (const { worker, how, said } of context.lines('ended'))
    if (how !== 'SIGKILL' && how !== 0) add(`${worker} ended with ${how}: ${said}`)
  for (const { error } of context.lines('rolledBack')) if (error !== undefined) add(`producer: ${error}`)
  for (const { error } of context.lines('unknown')) add(`producer: ${error}`)
  return counts.size === 0
    ? ['no errors in any process']
    : [...counts].map(([text, count]) => `${count} × ${text.replaceAll(/\s+/g, ' ')}`)
}
