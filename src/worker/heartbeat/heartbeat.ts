import { Listener } from '../../postgres/listener.ts'
import type { Statement } from '../../postgres/queryable.ts'
import { createLoop, type Loop } from '../loop.ts'
import { NO_COUNTERS } from '../registry/counters.ts'
import { lastCounters, presence, type PresenceRow, stopped } from '../registry/registry.ts'
import type { FromHeartbeat, HeartbeatConfig, Port, ToHeartbeat } from './messages.ts'
import type { Renewals } from './renewal.ts'

const WAKE_CHANNEL = 'leasehold_wake'
const SETTINGS_CHANNEL = 'leasehold_settings'

/**
 * What shows others that a process is alive: the renewal of its leases and its presence in the registry. It also listens
 * for wake-ups. It runs in a thread of its own with connections of its own, so that a handler that blocks the event loop
 * of the process starves none of them.
 *
 * A process claims nothing before it is in the registry, so that comes first: the code of the renewals is loaded later.
 */
export function runHeartbeat(config: HeartbeatConfig, port: Port<ToHeartbeat, FromHeartbeat>): void {
  const { schema } = config
  let { worker } = config
  const send = (message: FromHeartbeat): void => port.post(message)
  let activity: Omit<Extract<ToHeartbeat, { type: 'activity' }>, 'type'> = {
    inFlight: 0,
    paused: [],
    reaps: [],
    counters: NO_COUNTERS,
  }
  /** The registry may know of this process. */
  let isRegistered = config.isRegistered
  let loading: Promise<Renewals> | undefined

  function sayPresent(backendPid: number | undefined): Statement {
    isRegistered = true
    const { inFlight, paused, reaps, counters } = activity
    return presence(schema, { ...worker, reaps }, inFlight, backendPid, paused, counters)
  }

  /** The session that listens is also the one by which others see that this process is alive. */
  const listener = new Listener({
    url: config.listenUrl,
    applicationName: `leasehold ${worker.id}`.slice(0, 63),
    channels: [WAKE_CHANNEL, SETTINGS_CHANNEL],
    probeIntervalMs: config.presenceMs,
    probe: sayPresent,
    onProbe: (rows) => tellPresent(rows),
    onNotification: (channel, name) =>
      send(channel === WAKE_CHANNEL ? { type: 'woken', name } : { type: 'settingsChanged', name }),
    onEvent: (event) => {
      if (event.type === 'listening') {
        send({ type: 'listening' })
        void presenceLoop.stop()
      } else {
        send({ type: 'notListening', error: event.error })
        // Only this session has ended (the server has no free connection, say). Reported by another one, the process has
        // no visible session, and is not taken for dead.
        presenceLoop.start()
      }
    },
  })
  const presenceLoop = createLoop({
    name: 'presence',
    work: async () => {
      const { db } = await loaded()
      tellPresent((await db.query(sayPresent(undefined))).rows)
    },
    pauseMs: () => config.presenceMs,
    onError: (error) => send({ type: 'trouble', what: 'updating the registry', error }),
  })
  const alive: Pick<Loop, 'start' | 'stop'> = config.listen ? listener : presenceLoop

  async function load(): Promise<Renewals> {
    const part = await import('./renewal.ts')
    return new part.Renewals(config, send)
  }

  function loaded(): Promise<Renewals> {
    loading ??= load()
    return loading
  }

  /** Calls are carried out in their order, whether the code is loaded yet or not. */
  function renewals(what: string, work: (renewals: Renewals) => Promise<void> | void): void {
    loaded()
      .then(work)
      .catch((error: unknown) => send({ type: 'trouble', what, error }))
  }

  function tellPresent(rows: readonly object[]): void {
    // These are the columns that the statement of `presence` returns, in one row.
    const [row] = rows as readonly PresenceRow[]
    send({ type: 'present', processes: row?.processes ?? {}, buckets: row?.buckets ?? 1 })
    if (row?.had_died === true) returned()
  }

  /** Declared dead: other workers may hold the rows by now, and the handlers are to be told at once. */
  function returned(): void {
    send({ type: 'returned' })
    renewals('hastening renewals', (all) => all.hasten())
  }

  async function stop(all: Renewals, clean: boolean): Promise<void> {
    await all.stop()
    await alive.stop()
    await presenceLoop.stop()
    try {
      // A process that never registered has nothing to update, and may not reach the database at all.
      if (isRegistered) {
        const { counters } = activity
        await all.db.query(
          clean ? stopped(schema, worker.id, counters) : lastCounters(schema, worker.id, counters),
        )
      }
    } catch (error) {
      send({ type: 'trouble', what: 'registering that this process has stopped', error })
    }
    await all.db.close()
    send({ type: 'stopped' })
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
      case 'activity':
        activity = message
        break
      case 'stopping':
        worker = { ...worker, roles: worker.roles.filter((role) => role === 'reaper') }
        break
      case 'stop':
        renewals('stopping the heartbeat', async (all) => stop(all, message.clean))
        break
    }
  })
  alive.start()
  send({ type: 'ready' })
}
