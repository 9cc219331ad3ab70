import { systemClock } from '../clock.ts'
import { leaseStore } from '../lease/store.ts'
import { openDatabase } from '../postgres/database.ts'
import { Listener } from '../postgres/listener.ts'
import { type Statement } from '../postgres/queryable.ts'
import { HeldRows } from './held-rows.ts'
import { type FromLifeline, type LifelineConfig, type Port, type ToLifeline } from './lifeline-messages.ts'
import { createLoop, type Loop } from './loop.ts'
import { farewell, presence, type PresenceRow } from './registry.ts'
import { createRenewal, type Renewal } from './renewal.ts'

/** A renewal that takes longer than this is taken for failed; the lease must outlast two tries. */
const RENEWAL_TIMEOUT_MS = 5_000

const WAKE_CHANNEL = 'leasehold_wake'
const SETTINGS_CHANNEL = 'leasehold_settings'

/**
 * What keeps a worker alive in the eyes of the others: the renewal of its leases, its presence in the registry, and
 * the wake-ups it listens for. It runs in a thread of its own with connections of its own, so that a handler that
 * blocks the worker's event loop starves none of them.
 */
export function runLifeline(config: LifelineConfig, port: Port<ToLifeline, FromLifeline>): void {
  const { databaseUrl, schema } = config
  let { worker } = config
  const db = openDatabase({
    url: databaseUrl,
    applicationName: `leasehold lifeline ${worker.id}`.slice(0, 63),
    // One for each table that is just being renewed: a lock on one must not hold up the others.
    maxConnections: 3,
    queryTimeoutMs: RENEWAL_TIMEOUT_MS,
  })
  const tell = (message: FromLifeline): void => port.post(message)
  const renewals = new Map<string, Renewal>()
  let inFlight = 0
  /** The registry may have heard of this worker. */
  let introduced = false

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
    work: async () => tellPresent((await db.query(introduction(undefined))).rows),
    pauseMs: () => config.presenceMs,
    onError: (error) => tell({ type: 'trouble', what: 'saying that this worker is alive', error }),
  })
  const alive: Pick<Loop, 'start' | 'stop'> = config.listen ? listener : presenceLoop

  function tellPresent(rows: readonly object[]): void {
    tell({ type: 'present' })
    // The statement that `presence` makes returns these.
    if ((rows as readonly PresenceRow[]).some(({ had_died }) => had_died)) returned()
  }

  /** Taken for dead: what was held may be somebody else's, and the handlers are to hear it now. */
  function returned(): void {
    tell({ type: 'returned' })
    for (const renewal of renewals.values()) renewal.loop.hasten()
  }

  function serve(message: Extract<ToLifeline, { type: 'serve' }>): void {
    const { name, table, shape, bucket, timing } = message
    const renewal = createRenewal({
      name,
      store: leaseStore(db, table, shape, { owner: worker.id, bucket }),
      held: new HeldRows(message.held),
      timing,
      clock: systemClock,
      tell,
    })
    renewals.set(name, renewal)
    renewal.loop.start()
  }

  async function stop(): Promise<void> {
    await Promise.all([...renewals.values()].map(async ({ loop }) => loop.stop()))
    await alive.stop()
    try {
      // Nobody misses one who never came, and a database that could not be reached then would hold up the end.
      if (introduced) await db.query(farewell(schema, worker.id))
    } catch (error) {
      tell({ type: 'trouble', what: 'saying goodbye', error })
    }
    await db.close()
    tell({ type: 'stopped' })
  }

  port.onMessage((message) => {
    switch (message.type) {
      case 'serve':
        serve(message)
        break
      case 'hold':
        renewals.get(message.name)?.hold(message.rows)
        break
      case 'timing':
        renewals.get(message.name)?.change(message.timing)
        break
      case 'inFlight':
        inFlight = message.count
        break
      case 'stopping':
        worker = { ...worker, roles: worker.roles.filter((role) => role === 'reaper') }
        break
      case 'stop':
        stop().catch((error: unknown) => tell({ type: 'trouble', what: 'stopping the lifeline', error }))
        break
    }
  })
  alive.start()
  tell({ type: 'ready' })
}
