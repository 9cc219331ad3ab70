/**
 * High availability: a server is replaced by another one under load. Producers and relays are processes of their own,
 * know the servers by one database URL with two hosts, and are never restarted.
 */
import { Client } from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest'
import { openDatabase } from '../src/postgres/database.ts'
import { Listener, type ListenerEvent } from '../src/postgres/listener.ts'
import { migrate } from '../src/postgres/migrate.ts'
import { withAdmin } from './support/admin.ts'
import { useDatabase } from './support/database.ts'
import { freePort } from './support/free-port.ts'
import { useProcesses } from './support/processes.ts'
import { snippets } from './support/project-files.ts'
import { useQuietProcess } from './support/quiet-process.ts'
import { type OutboxRecord, records, statuses, write } from './support/running-relay.ts'
import { conninfo, startServer, type TestServer } from './support/server.ts'
import {
  acknowledged,
  type Arrival,
  arrivals,
  createSink,
  moreAcknowledged,
  startProducer,
  startRelay,
  type WorkerProcess,
  type Written,
} from './support/worker-process.ts'

useQuietProcess()
const processes = useProcesses()
/** Where the relays publish to. It outlives the servers, and so knows what was published before one of them died. */
const broker = useDatabase()
const sink = openDatabase({ url: broker.url })
/** In hooks, where `expect.poll` cannot be used. */
const WAIT = { timeout: 120_000, interval: 20 }
const SETTINGS = { wal_level: 'logical', wal_keep_size: '256MB' }
/** A stopped server with Leasehold's tables, of which the others are copies. */
let template: TestServer

beforeAll(async () => {
  template = await startServer({ settings: SETTINGS })
  const db = openDatabase({ url: template.url })
  await migrate(db)
  await db.close()
  await template.stop('fast')
  await createSink(sink)
})
beforeEach(async () => {
  await sink.query({ text: 'truncate public.sink restart identity' })
})
afterAll(async () => {
  await sink.close()
  await template.remove()
})

/** One URL for several servers, which all have the same password. */
function urlOf(servers: readonly TestServer[], parameters = ''): string {
  const [first] = servers
  const { username, password, pathname } = new URL(first?.url ?? '')
  const hosts = servers.map(({ url }) => new URL(url).host).join(',')
  return `postgresql://${username}:${password}@${hosts}${pathname}${parameters}`
}

function portOf({ url }: TestServer): number {
  return Number(new URL(url).port)
}

/** Every COMMIT waits until this standby or subscription has it. */
async function replicateSynchronously({ url }: TestServer, name: string): Promise<void> {
  await withAdmin(url, async (admin) => {
    await admin.query(`alter system set synchronous_standby_names = '${name}'`)
    await admin.query('select pg_reload_conf()')
    const states = async (): Promise<string[]> => {
      const { rows } = await admin.query<{ sync_state: string }>(
        'select sync_state from pg_stat_replication where application_name = $1',
        [name],
      )
      return rows.map(({ sync_state: state }) => state)
    }
    await vi.waitFor(async () => expect(await states()).toEqual(['sync']), WAIT)
  })
}

async function makeReadOnly({ url }: TestServer, isReadOnly: boolean): Promise<void> {
  await withAdmin(url, async (admin) => {
    await admin.query(`alter system set default_transaction_read_only = ${isReadOnly}`)
    await admin.query('select pg_reload_conf()')
  })
}

const TIMING = { leaseMs: 3_000, reaperIntervalMs: 500, pollMs: 100, shutdownTimeoutMs: 2_000 }
const EVENTS = 150
/** What each relay does only with the database: the pool settles, the heartbeat renews, the session listens. */
const CONNECTED = ['settled', 'renewed', 'listening'] as const

function startLoad(databaseUrl: string) {
  const relays = [1, 2].map(() =>
    startRelay(processes, {
      databaseUrl,
      sinkUrl: broker.url,
      // Slow enough for every heartbeat to find rows that have been in flight for half of its interval.
      publishMs: 50,
      maxBatch: 10,
      tell: CONNECTED,
      // Neither can hold all keys, so that both have something to do.
      settings: { ...TIMING, heartbeatMs: 60, concurrency: 8, prefetch: 0 },
      runtime: { presenceMs: 500 },
    }),
  )
  const producers = ['a', 'b'].map((name) => startProducer(processes, { databaseUrl, name, keys: 10 }))
  return { relays, producers }
}

/** Resolves when the relay has printed more events of this type than it had then. */
async function more(relay: WorkerProcess, type: string, before = relay.all(type).length): Promise<void> {
  await relay.heard(type, () => relay.all(type).length > before)
}

interface Replacement {
  readonly url: string
  readonly old: TestServer
  readonly takeOver: () => Promise<void>
}

/** What must not happen. */
interface Defects {
  /** Events that a producer was sure of, and that were not published. */
  readonly lost: readonly Written[]
  /** Arrivals under a token that another relay had used for the same event. */
  readonly tokensGivenTwice: readonly Arrival[]
  /** Arrivals under a token that the event has not reached. */
  readonly tokensFromNowhere: readonly Arrival[]
  readonly outOfOrder: readonly Arrival[]
}

const NONE: Defects = { lost: [], tokensGivenTwice: [], tokensFromNowhere: [], outOfOrder: [] }

/** Kills a server under load, lets another one take over, and examines everything that was published. */
async function replaceUnderLoad({ url, old, takeOver }: Replacement): Promise<Defects> {
  const { relays, producers } = startLoad(url)
  await Promise.all(producers.map(async (producer) => moreAcknowledged(producer, EVENTS)))
  await Promise.all(relays.flatMap((relay) => CONNECTED.map(async (type) => relay.heard(type))))

  await old.kill()
  const listening = relays.map(async (relay) => more(relay, 'listening'))
  await takeOver()
  await Promise.all(listening)
  await Promise.all(relays.flatMap((relay) => ['settled', 'renewed'].map(async (type) => more(relay, type))))
  await Promise.all(producers.map(async (producer) => moreAcknowledged(producer, EVENTS)))

  const ends = await Promise.all(producers.map(async (producer) => producer.kill('SIGTERM')))
  expect(ends).toEqual(producers.map(() => ({ code: 0, signal: null })))
  const db = openDatabase({ url })
  await expect.poll(async () => Object.keys(await statuses(db))).toEqual(['PUBLISHED'])
  const written = producers.flatMap(acknowledged)
  expect(written.length).toBeGreaterThanOrEqual(4 * EVENTS)
  const defects = defectsOf(await arrivals(sink), written, await records(db))
  await db.close()
  for (const relay of relays) {
    await relay.kill('SIGTERM')
    expect(relay.all('down')).toEqual([{ type: 'down', clean: true }])
  }
  return defects
}

function defectsOf(
  all: readonly Arrival[],
  written: readonly Written[],
  rows: readonly OutboxRecord[],
): Defects {
  const nameOf = ({ key, n }: Pick<Arrival, 'key' | 'n'>): string => `${key} ${n}`
  const published = new Set(all.map(nameOf))
  const tokens = new Map(rows.map((row) => [row.event_id, BigInt(row.lock_token)]))
  const relayOf = new Map<string, string>()
  const seen = new Set<string>()
  const lastOf = new Map<string | null, number>()
  return {
    lost: written.filter((event) => !published.has(nameOf(event))),
    tokensGivenTwice: all.filter(({ event_id: id, token, relay }) => {
      const first = relayOf.get(`${id} ${token}`) ?? relay
      relayOf.set(`${id} ${token}`, first)
      return first !== relay
    }),
    tokensFromNowhere: all.filter(({ event_id: id, token }) => BigInt(token) > (tokens.get(id) ?? -1n)),
    // Only the first arrival of an event counts: it may be published a second time later.
    outOfOrder: all.filter(({ event_id: id, key, n }) => {
      if (seen.has(id)) return false
      seen.add(id)
      const last = lastOf.get(key) ?? 0
      lastOf.set(key, n)
      return n < last
    }),
  }
}

describe('streaming replication', () => {
  let primary: TestServer
  let standby: TestServer

  beforeAll(async () => {
    primary = await startServer({ copyOf: template, settings: SETTINGS })
    standby = await startServer({ copyOf: template, standbyOf: primary, settings: SETTINGS })
    await replicateSynchronously(primary, 'standby')
  })
  afterAll(async () => {
    await primary.remove()
    await standby.remove()
  })

  /** The port of the server that a pool with this URL connects to. */
  async function serverAt(url: string): Promise<number | undefined> {
    const db = openDatabase({ url })
    try {
      const { rows } = await db.query<{ port: number }>({ text: 'select inet_server_port() as port' })
      return rows[0]?.port
    } finally {
      await db.close()
    }
  }

  it.each(['', '?target_session_attrs=read-write', '?target_session_attrs=primary'])(
    'a pool connects to the first host that takes writes: %s',
    async (parameters) => {
      expect(await serverAt(urlOf([standby, primary], parameters))).toBe(portOf(primary))
      expect(await serverAt(urlOf([primary, standby], parameters))).toBe(portOf(primary))
    },
  )

  it('with target_session_attrs=any a pool connects to a standby, and leaves it when a write is refused', async () => {
    const url = urlOf([standby, primary], '?target_session_attrs=any')
    expect(await serverAt(url)).toBe(portOf(standby))
    const db = openDatabase({ url })
    await expect(write(db, null)).rejects.toMatchObject({ code: '25006' })
    await write(db, null)
    await db.query({ text: 'truncate leasehold.outbox' })
    await db.close()
  })

  it('an error names each host and why it cannot be used', async () => {
    const port = await freePort()
    const url = urlOf([standby]).replace('@', `@127.0.0.1:${port},`)
    await expect(serverAt(url)).rejects.toMatchObject({
      code: 'DATABASE_UNAVAILABLE',
      message: expect.stringMatching(
        new RegExp(
          `^None of the 2 hosts of the database URL can be used: connect ECONNREFUSED 127\\.0\\.0\\.1:${port}; ` +
            `The server at 127\\.0\\.0\\.1:${portOf(standby)} is a standby, and target_session_attrs is read-write\\. `,
        ),
      ),
    })
    await expect(serverAt(urlOf([standby], '?target_session_attrs=primary'))).rejects.toMatchObject({
      code: 'DATABASE_UNAVAILABLE',
      message: `The server at 127.0.0.1:${portOf(standby)} is a standby, and target_session_attrs is primary. Name the server that takes writes in the database URL, or promote this one.`,
    })
  })

  it('a listener listens on the host that takes writes', async () => {
    const heard: string[] = []
    const events: ListenerEvent[] = []
    const listener = new Listener({
      url: urlOf([standby, primary]),
      channels: ['news'],
      onNotification: (_channel, payload) => heard.push(payload),
      onEvent: (event) => events.push(event),
    })
    listener.start()
    await expect.poll(() => events.at(-1)).toEqual({ type: 'listening' })
    await withAdmin(primary.url, async (admin) => {
      await admin.query("notify news, 'hello'")
    })
    await expect.poll(() => heard).toEqual(['hello'])
    await listener.stop()
  })

  it('a pool leaves a server that became read-only with all of its connections, and returns to it later', async () => {
    const db = openDatabase({ url: urlOf([primary, standby]), maxConnections: 3 })
    const pids = async (): Promise<number[]> => {
      const text = 'select pg_backend_pid() as pid, pg_sleep(0.1)'
      const results = await Promise.all([1, 2, 3].map(async () => db.query<{ pid: number }>({ text })))
      return results.flatMap(({ rows }) => rows.map(({ pid }) => pid))
    }
    const before = await pids()
    expect(new Set(before).size).toBe(3)
    // No write tells it, and it is never idle.
    const reader = openDatabase({ url: urlOf([primary, standby]), maxConnectionAgeMs: 200 })
    const read = async (): Promise<string> =>
      reader.query({ text: 'select 1' }).then(
        () => 'read',
        ({ message }: Error) => message,
      )
    expect(await read()).toBe('read')
    await makeReadOnly(primary, true)
    // A server tells its sessions of changed settings a moment later.
    await expect
      .poll(async () => write(db, 'a').then(String, ({ code }: { code: string }) => code))
      .toBe('25006')
    await expect(pids()).rejects.toMatchObject({
      code: 'DATABASE_UNAVAILABLE',
      message: expect.stringMatching(/is a standby.*begins its transactions read-only/),
    })
    await expect.poll(read).toMatch(/begins its transactions read-only/)
    await makeReadOnly(primary, false)
    await expect.poll(read).toBe('read')
    await reader.close()
    await expect.poll(async () => pids().catch(() => before)).not.toEqual(before)
    expect((await pids()).filter((pid) => before.includes(pid))).toEqual([])
    await db.query({ text: 'truncate leasehold.outbox' })
    await db.close()
  })

  it('a worker leaves a server that became read-only, and continues when one takes writes', async () => {
    const relay = startRelay(processes, {
      databaseUrl: urlOf([standby, primary]),
      sinkUrl: broker.url,
      tell: ['listening', 'notListening', 'databaseLost', 'settled'],
      settings: TIMING,
      runtime: { presenceMs: 100 },
    })
    await relay.heard('listening')
    // The standby, which is the first host, was only passed over.
    expect(relay.all('notListening')).toEqual([])
    await makeReadOnly(primary, true)
    await relay.heard('notListening')
    await relay.heard('databaseLost')
    const listening = more(relay, 'listening')
    await makeReadOnly(primary, false)
    await listening
    const db = openDatabase({ url: primary.url })
    await write(db, 'a')
    await relay.heard('settled')
    expect(await statuses(db)).toEqual({ PUBLISHED: 1 })
    await relay.kill('SIGTERM')
    await db.query({ text: 'truncate leasehold.outbox' })
    await db.close()
  })

  it('when the primary is killed and its standby promoted under load, everything acknowledged is published, in order', async () => {
    const defects = await replaceUnderLoad({
      url: urlOf([primary, standby], '?target_session_attrs=read-write'),
      old: primary,
      takeOver: async () => {
        await withAdmin(standby.url, async (admin) => {
          await admin.query(`select set_config('test.before', clock_timestamp()::text, false), pg_promote()`)
          // By this a reaper that is started now knows that no session of the registry was one of this server.
          const started = `select from pg_stat_activity
            where backend_type = 'walwriter' and backend_start > current_setting('test.before')::timestamptz`
          await vi.waitFor(async () => expect((await admin.query(started)).rowCount).toBe(1), WAIT)
        })
      },
    })
    expect(defects).toEqual(NONE)
  })
})

/** The SQL of the runbook in docs/operations/scale.md that begins with this comment. */
async function runbook(heading: string): Promise<string[]> {
  const block = (await snippets('docs/operations/scale.md', 'sql')).find((sql) =>
    sql.startsWith(`-- ${heading}`),
  )
  if (block === undefined)
    throw new Error(`docs/operations/scale.md has no SQL that begins with -- ${heading}`)
  // Quoted bodies contain semicolons of their own.
  const parts = block
    .split(/(\$\$.*?\$\$)/s)
    .map((part, i) => (i % 2 === 1 ? part.replaceAll(';', '\0') : part))
  return parts
    .join('')
    .split(';')
    .map((statement) => statement.replaceAll('\0', ';').trim())
    .filter((statement) => statement !== '')
}

/** Statement by statement in one session, as a person does with psql. */
async function follow(heading: string, { url }: TestServer, connection = ''): Promise<void> {
  const client = new Client({ connectionString: url })
  await client.connect()
  try {
    for (const statement of await runbook(heading)) {
      await client.query(statement.replace(/connection '[^']*'/, `connection '${connection}'`))
    }
  } finally {
    await client.end()
  }
}

async function allCopied({ url }: TestServer): Promise<void> {
  const [uncopied = ''] = await runbook('Tables that are not copied yet')
  await withAdmin(url, async (admin) => {
    await vi.waitFor(async () => expect((await admin.query(uncopied)).rows).toEqual([{ tables: 0 }]), WAIT)
  })
}

describe('logical replication', () => {
  let primary: TestServer
  let replica: TestServer

  beforeAll(async () => {
    primary = await startServer({ copyOf: template, settings: SETTINGS })
    replica = await startServer({ copyOf: template, settings: SETTINGS })
    await follow('On the primary', primary)
    await follow('On the replica', replica, conninfo(primary.url, 'leasehold'))
    await allCopied(replica)
    await replicateSynchronously(primary, 'leasehold')
  })
  afterAll(async () => {
    await primary.remove()
    await replica.remove()
  })

  it('the number of buckets is raised on the replica first, and rows of the new buckets are replicated', async () => {
    for (const server of [replica, primary]) await follow('More buckets', server)
    const rowOf = async ({ url }: TestServer): Promise<unknown[]> => {
      const client = new Client({ connectionString: url })
      await client.connect()
      try {
        const { rows } = await client.query(`select bucket, leasehold.previous_bucket_count() as previous
          from leasehold.outbox where event_type = 'bucket'`)
        return rows
      } finally {
        await client.end()
      }
    }
    await withAdmin(primary.url, async (admin) => {
      await admin.query(`insert into leasehold.outbox (event_type, payload, ordering_key, status, published_at)
        values ('bucket', '{}', 'some key', 'PUBLISHED', now())`)
    })
    expect(await rowOf(primary)).toEqual([{ bucket: 38, previous: 64 }])
    // The primary may write rows by the number before after the replica knows the new one.
    const replicated = [{ bucket: 38, previous: 1 }]
    await vi.waitFor(async () => expect(await rowOf(replica)).toEqual(replicated), WAIT)
  })

  it('a logical replica takes over under load as docs/operations/scale.md says, and everything acknowledged is published', async () => {
    const defects = await replaceUnderLoad({
      url: urlOf([primary, replica], '?target_session_attrs=read-write'),
      old: primary,
      takeOver: async () => follow('Takeover', replica),
    })
    expect(defects).toEqual(NONE)
    const db = openDatabase({ url: replica.url })
    const { rows } = await db.query<{ entry: string }>({
      text: "insert into leasehold.audit (principal, action) values ('test', 'test') returning id::text as entry",
    })
    expect(Number(rows[0]?.entry)).toBeGreaterThan(1_000_000)
    await db.close()
  })
})
