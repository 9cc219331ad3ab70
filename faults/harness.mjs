// One run of one fault: a database, worker processes behind proxies, producers, the fault, and the checker's verdict.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { copyFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { migrate, openDatabase } from '../dist/index.js'
import { enqueue } from '../dist/outbox/index.js'
import { check } from './checker.mjs'
import { followHistory, openHistory, readHistory } from './history.mjs'
import { startProducers } from './producers.mjs'
import { startProxy } from './proxy.mjs'
import { randomFor } from './random.mjs'
import { until } from './until.mjs'
import { createRunDirectory, startServer, urlOf, withClient } from './server.mjs'

const PROCESSES = fileURLToPath(new URL('processes/', import.meta.url))
export const BUILD = new URL('../dist/', import.meta.url).href

export const TIMING = {
  leaseMs: 2_000,
  heartbeatMs: 500,
  reaperIntervalMs: 400,
  pollMs: 100,
  shutdownTimeoutMs: 1_500,
}
/** A busy machine delays everything; a row that is stuck stays so for ever. */
const MARGIN_MS = 40_000
const WORKERS = 3
/** Between two transactions of a producer, at most: a short run has a quarter of the events in the same time. */
const SHORT_PAUSE_MS = 150
const RETRY = { firstMs: 100, factor: 2, longestMs: 1_000, jitter: 0.25 }
const TEMPLATE = 'faults_template'

/** The server that all faults share which need none of their own. */
export async function openRun(serverOptions = {}) {
  const directory = await createRunDirectory()
  try {
    const server = await startServer(directory, serverOptions)
    await prepareTemplate(server)
    return {
      directory,
      server,
      async close() {
        await server.stop()
        await directory.remove()
      },
    }
  } catch (error) {
    await directory.remove()
    throw error
  }
}

async function prepareTemplate(server) {
  await withClient(server.url, async (admin) => admin.query(`create database ${TEMPLATE}`))
  const db = openDatabase({ url: urlOf(server, TEMPLATE) })
  await migrate(db)
  await db.query({ text: RECORD_CHANGES })
  await db.close()
}

/** Every change of a row, by the database itself: in the transaction of the change, whoever makes it. */
const RECORD_CHANGES = `
create table public.changes (
  seq bigint generated always as identity primary key, line jsonb not null);
create function public.record_change() returns trigger language plpgsql as $$
begin
  insert into public.changes (line) values (jsonb_build_object(
    'row', new.id::text, 'from', old.status, 'to', new.status,
    'fromToken', old.lock_token::text, 'toToken', new.lock_token::text, 'owner', old.claimed_by,
    'session', replace(current_setting('application_name'), 'leasehold worker ', ''),
    'isExpiry', new.expiries > old.expiries or (
      new.history is distinct from old.history and new.history -> -1 ->> 'outcome' = 'expired') is true));
  return null;
end $$;
create trigger record_change after update on leasehold.outbox for each row
  when (old.status <> new.status or old.lock_token <> new.lock_token)
  execute function public.record_change();
`

const FINAL_ROWS = `select id::text as "row", event_id::text as "eventId", ordering_key as key, status, lock_token::text as token,
  published_by as "publishedBy", attempts, last_error as "lastError"
  from leasehold.outbox order by id`

/**
 * Runs a fault and returns the verdict. `build`: of which the workers are; default that of the project.
 * @returns the result of the checker, with the path of the history if there was an objection
 */
export async function runFault(fault, { run, seed, short = false, build = BUILD }) {
  const reason = await fault.skip?.()
  if (reason !== undefined && process.env['LEASEHOLD_REQUIRE_BROKERS'] === '1')
    throw new Error(`${fault.name} cannot run: ${reason}`)
  if (reason !== undefined) return { name: fault.name, skipped: reason }
  const own = fault.server === undefined ? undefined : await openRun(await fault.server())
  const startedAt = performance.now()
  try {
    const result = await runIn(fault, { run: own ?? run, seed, short, build })
    return {
      name: fault.name,
      title: fault.title,
      seconds: (performance.now() - startedAt) / 1_000,
      ...result,
    }
  } finally {
    await own?.close()
    await fault.cleanUp?.()
  }
}

let databases = 0

async function runIn(fault, { run, seed, short, build }) {
  databases += 1
  const database = `${fault.name.replaceAll(/[^a-z0-9]/g, '_')}_${databases}`
  await withClient(run.server.url, async (admin) =>
    admin.query(`create database ${database} template ${TEMPLATE}`),
  )
  const path = join(run.directory.path, `${fault.name}-${databases}.jsonl`)
  const history = openHistory(path)
  const timing = { ...TIMING, ...fault.timing }
  history.write({
    type: 'run',
    fault: fault.name,
    seed,
    leaseMs: timing.leaseMs,
    reaperMs: timing.reaperIntervalMs,
    marginMs: fault.marginMs ?? MARGIN_MS,
  })
  const context = createContext({ fault, run, seed, short, build, database, history, timing })
  let more = {}
  try {
    await fault.prepare?.(context)
    await context.start()
    await (fault.run === undefined ? repeatStep(fault, context) : fault.run(context))
    await context.calm()
    await fault.drained?.(context)
    await context.drain()
    await context.stopWorkers()
    more = (await fault.finish?.(context)) ?? {}
  } catch (error) {
    // What happened until then is checked all the same.
    more = { objections: [{ rule: 'harness', text: error.stack }] }
  }
  await context.end()
  await recordTable(context.url, history)
  history.close()
  const { objections: broken, ...figures } = check(readHistory(path))
  const objections = [...(more.objections ?? []), ...broken]
  const result = { ...figures, ...more.figures, objections }
  await withClient(run.server.url, async (admin) => admin.query(`drop database ${database} with (force)`))
  if (objections.length === 0) {
    await rm(path)
    return result
  }
  const kept = join(tmpdir(), `leasehold-faults-${fault.name}-${seed}-${process.pid}-${databases}.jsonl`)
  await copyFile(path, kept)
  return { ...result, history: kept }
}

/** Most faults are one step that is repeated; a soak takes steps of many of them. */
async function repeatStep({ step, times }, context) {
  for (let round = context.rounds(times); round > 0; round -= 1) await step(context)
}

async function recordTable(url, history) {
  await withClient(url, async (client) => {
    const changes = await client.query('select line from public.changes order by seq')
    for (const { line } of changes.rows) history.write({ type: 'change', ...line })
    const { rows } = await client.query(FINAL_ROWS)
    for (const row of rows) history.write({ type: 'row', ...row })
  })
}

/** What a fault can use. */
function createContext({ fault, run, seed, short, build, database, history, timing }) {
  const random = randomFor(seed, fault.name)
  const url = urlOf(run.server, database)
  const workers = new Set()
  const ending = new Set()
  const follower = followHistory(history.path)
  const seen = new Map()
  let started = 0
  let transactions = 0
  const closing = []
  let isCalm = false
  let isDrainedAlready = false
  let producers

  const context = {
    random,
    seed,
    short,
    url,
    database,
    server: run.server,
    directory: run.directory,
    history,
    timing,
    delay,
    /** The workers that run. */
    get workers() {
      return [...workers]
    },
    anyWorker: () => random.pick([...workers]),

    /** Called at the end of the run, however that ends, the last one first. */
    onEnd: (close) => void closing.unshift(close),

    /** Says that the fault did something. A fault that never says so is objected to. */
    fire: (what, more = {}) => history.write({ type: 'fired', what, ...more }),

    /** How often to repeat something: less often in the short form. */
    rounds: (count) => (short ? Math.max(2, Math.ceil(count / 3)) : count),

    async start() {
      const wanted = fault.workers ?? WORKERS
      await Promise.all(Array.from({ length: wanted }, async () => context.startWorker()))
      if (fault.produces !== false) context.produce()
      if (fault.produces !== false) await context.accepted(short ? 20 : 40)
    },

    produce(given = fault.produces) {
      const options = { ...(short ? { pauseMs: SHORT_PAUSE_MS } : {}), ...given }
      producers = startProducers({ url: context.producerUrl ?? url, history, seed, options })
    },

    /** Writes these events in a transaction of their own, besides those of the producers. */
    async enqueue(events) {
      transactions += 1
      const tx = `own-${transactions}`
      history.write({ type: 'begun', tx })
      await context.withClient(async (client) => {
        await client.query('begin')
        const written = await enqueue(client, events)
        for (const [i, { id, eventId }] of written.entries())
          history.write({ type: 'written', tx, row: id, eventId, key: events[i].orderingKey })
        await client.query('commit')
      })
      history.write({ type: 'committed', tx })
    },

    async startWorker({ env = {}, ...options } = {}) {
      started += 1
      const id = `w${started}`
      const { script = 'relay.mjs', ...given } = { ...fault.worker, ...context.workerOptions, ...options }
      const proxy = await startProxy(given.databaseUrl ?? url)
      const config = {
        id,
        seed,
        build,
        history: history.path,
        retry: RETRY,
        ...given,
        databaseUrl: proxy.url,
        settings: { ...timing, concurrency: 10, prefetch: 20, ...given.settings },
      }
      const child = spawn(process.execPath, [join(PROCESSES, script), JSON.stringify(config)], {
        env: { ...process.env, ...env },
        stdio: ['pipe', 'pipe', 'pipe'],
        detached: true,
      })
      let said = ''
      child.stderr.setEncoding('utf8').on('data', (text) => (said = (said + text).slice(-4_000)))
      child.stdin.on('error', () => {})
      run.directory.watch(child)
      const worker = {
        id,
        pid: child.pid,
        proxy,
        /** `undefined` while it runs. */
        exit: undefined,
        signal: (name) => child.kill(name),
        /** Kills it and waits for its end. */
        async kill(name = 'SIGKILL') {
          child.kill(name)
          return worker.exited
        },
      }
      worker.exited = once(child, 'exit').then(async ([code, signal]) => {
        worker.exit = signal ?? code
        workers.delete(worker)
        history.write({ type: 'ended', worker: id, how: worker.exit, clean: code === 0, said })
        await proxy.close()
        return worker.exit
      })
      ending.add(worker.exited)
      const up = new Promise((resolve) => child.stdout.once('data', () => resolve('up')))
      // It counts as a worker at once: it may be killed while it starts.
      workers.add(worker)
      if ((await Promise.race([up, worker.exited])) !== 'up' && given.mayFail !== true)
        throw new Error(`${id} did not start: ${said}`)
      return worker
    },

    /** One connection to the database of the run, past the proxies. */
    withClient: async (work) => withClient(url, work),
    withAdmin: async (work) => withClient(run.server.url, work),

    /** The lines of this type so far. */
    lines(type) {
      for (const line of follower.next()) {
        const list = seen.get(line.type) ?? []
        seen.set(line.type, list)
        list.push(line)
      }
      return seen.get(type) ?? []
    },

    /** Resolves when this many more attempts were accepted. */
    async accepted(count) {
      await context.seen('accepted', count)
    },

    /** From here on, how many lines of this type there are that fit; and a wait until there are this many. */
    watch(type, fits = () => true) {
      const before = context.lines(type).length
      const count = () =>
        context
          .lines(type)
          .slice(before)
          .filter((line) => fits(line)).length
      return {
        count,
        seen: async (wanted = 1) =>
          until(`${wanted} lines of the type ${type}`, async () => count() >= wanted),
      }
    },

    /** Resolves when the history has this many more lines of this type that fit. */
    async seen(type, count = 1, fits = () => true) {
      await context.watch(type, fits).seen(count)
    },

    /** Resolves when every event whose payload asks for this behaviour is published or dead. */
    async seenFinished(behaviour) {
      const text = `select count(*)::int as count from leasehold.outbox
        where payload ->> 'behaviour' = $1 and status in ('PENDING', 'CLAIMED')`
      await until(`the end of the events that ask for ${behaviour}`, async () =>
        context.withClient(async (client) => (await client.query(text, [behaviour])).rows[0].count === 0),
      )
    },

    /** The producers stop, and the fault is over: from here on every row has to be finished in time. */
    async calm() {
      await producers?.stop()
      if (isCalm) return
      isCalm = true
      history.write({ type: 'calm', at: Math.round(performance.now()) })
    },

    async drain() {
      if (isDrainedAlready) return
      const limitMs = timing.leaseMs + timing.reaperIntervalMs + (fault.marginMs ?? MARGIN_MS)
      const deadline = performance.now() + limitMs
      while (performance.now() < deadline) {
        if (await isDrained(url)) {
          history.write({ type: 'drained', at: Math.round(performance.now()) })
          isDrainedAlready = true
          return
        }
        await delay(100)
      }
    },

    async stopWorkers() {
      await Promise.all([...workers].map(async (worker) => worker.kill('SIGTERM')))
      await Promise.all(ending)
    },

    async end() {
      await producers?.stop()
      await Promise.all([...workers].map(async (worker) => worker.kill('SIGKILL')))
      await Promise.all(ending)
      for (const close of closing) await close()
      follower.close()
    },
  }
  return context
}

const UNFINISHED = `select exists (select from leasehold.outbox where status in ('PENDING', 'CLAIMED'))
  or exists (select from leasehold.webhook_outbox where delivery_status = 'pending')
  or exists (select from leasehold.sync_jobs where completed_at is null and failed_at is null) as unfinished`

async function isDrained(url) {
  try {
    return await withClient(url, async (client) => !(await client.query(UNFINISHED)).rows[0].unfinished)
  } catch {
    return false
  }
}
