import { Listener } from '../postgres/listener.ts'
import type { Statement } from '../postgres/queryable.ts'
import type { FromLifeline, LifelineConfig, Port, ToLifeline } from './lifeline-messages.ts'
import type { LifelineRenewals } from './lifeline-renewals.ts'
import { createLoop, type Loop } from './loop.ts'
import { farewell, presence, type PresenceRow } from './registry-sql.ts'

const WAKE_CHANNEL = 'leasehold_wake'
const SETTINGS_CHANNEL = 'leasehold_settings'

/**
 * What keeps a worker alive in the eyes of the others: the renewal of its leases, its presence in the registry, and
 * the wake-ups it listens for. It runs in a thread of its own with connections of its own, so that a handler that
 * blocks the worker's event loop starves none of them.
 *
 * A worker claims nothing before it is present, so that comes first: what renewals need is loaded once there are any.
 */
export function runLifeline(config: LifelineConfig, port: Port<ToLifeline, FromLifeline>): void {
  const { schema } = config
  let { worker } = config
  const tell = (message: FromLifeline): void => port.post(message)
  let inFlight = 0
  /** The registry may have heard of this worker. */
  let introduced = false
  let loading: Promise<LifelineRenewals> | undefined

  function introduction(backendPid: number | undefined): Statement {
    introduced = true
    return presence(schema, worker, inFlight, backendPid)
  }

  /** The session that shows that this worker is alive is the one that says so. */
  const listener = new Listener({
    url: config.listenUrl,
    applicationName: `leasehold ${worker.id}`.slice(0, 63),
    channels: [WAKE_CHANNEL, SETTINGS_CHANNEL],
    probeIntervalMs: config.presenceMs,
    probe: introduction,
    onProbe: (rows) => tellPresent(rows),
    onNotification: (channel, name) =>
      tell(channel === WAKE_CHANNEL ? { type: 'woken', name } : { type: 'settingsChanged', name }),
    onEvent: (event) =>
      tell(event.type === 'listening' ? { type: 'listening' } : { type: 'notListening', error: event.error }),
  })
  const presenceLoop = createLoop({
    name: 'presence',
    work: async () => {
      const { db } = await loaded()
      tellPresent((await db.query(introduction(undefined))).rows)
    },
    pauseMs: () => config.presenceMs,
    onError: (error) => tell({ type: 'trouble', what: 'saying that this worker is alive', error }),
  })
  const alive: Pick<Loop, 'start' | 'stop'> = config.listen ? listener : presenceLoop

  async function load(): Promise<LifelineRenewals> {
    const part = await import('./lifeline-renewals.ts')
    return new part.LifelineRenewals(config, tell)
  }

  function loaded(): Promise<LifelineRenewals> {
    loading ??= load()
    return loading
  }

  /** In the order in which it was asked for, whether they are loaded yet or not. */
  function renewals(what: string, work: (renewals: LifelineRenewals) => Promise<void> | void): void {
    loaded()
      .then(work)
      .catch((error: unknown) => tell({ type: 'trouble', what, error }))
  }

  function tellPresent(rows: readonly object[]): void {
    tell({ type: 'present' })
    // The statement that `presence` makes returns these.
    if ((rows as readonly PresenceRow[]).some(({ had_died }) => had_died)) returned()
  }

  /** Taken for dead: what was held may be somebody else's, and the handlers are to hear it now. */
  function returned(): void {
    tell({ type: 'returned' })
    renewals('hastening renewals', (all) => all.hasten())
  }

  async function stop(all: LifelineRenewals): Promise<void> {
    await all.stop()
    await alive.stop()
    try {
      // Nobody misses one who never came, and a database that could not be reached then would hold up the end.
      if (introduced) await all.db.query(farewell(schema, worker.id))
    } catch (error) {
      tell({ type: 'trouble', what: 'saying goodbye', error })
    }
    await all.db.close()
    tell({ type: 'stopped' })
  }

  port.onMessage((message) => {
    switch (message.type) {
      case 'serve':
        renewals(`serving ${message.name}`, (all) => all.serve(message))
        break
      case 'hold':
        renewals(`holding rows of ${message.name}`, (all) => all.hold(message))
        break
      case 'timing':
        renewals(`timing ${message.name}`, (all) => all.change(message))
        break
      case 'inFlight':
        inFlight = message.count
        break
      case 'stopping':
        worker = { ...worker, roles: worker.roles.filter((role) => role === 'reaper') }
        break
      case 'stop':
        renewals('stopping the lifeline', stop)
        break
    }
  })
  alive.start()
  tell({ type: 'ready' })
}
