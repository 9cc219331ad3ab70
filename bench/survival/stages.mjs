// What happens to the jobs of one side when its process, its connections or its server fail.
import { existsSync, readFileSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'
import { startProcess } from '../called-process.mjs'
import { withClient } from '../client.mjs'
import { CONCURRENCY, SIDES } from './sides.mjs'

const POLL_MS = 50
/** For how long statements of a zombie may take to reach the server after its handler has returned. */
const SETTLING_MS = 3_000
const STORM_MS = 2_000
const STORM_INTERVAL_MS = 100
const DOWN_MS = 2_000
/** A zombie runs for so long before its handlers return: longer than every side's heartbeat, which may tell it. */
const AWAKE_MS = 6_000
/** Orchestrators kill a process that does not end after SIGTERM; this is longer than every side's own timeout. */
const GRACE_MS = 45_000

/** Each stage: a title, what is done, and a function of `trial`. `server`: all sides of a round share the fault. */
export const STAGES = {
  kill: {
    title: 'SIGKILL in the middle of jobs',
    text: 'A process is killed while it runs 5 jobs. A second process is idle.',
    run: kill,
  },
  zombie: {
    title: 'Zombie: stopped past its lock, continued while another process runs its jobs',
    text: 'A process is stopped (SIGSTOP) in the middle of 5 jobs until a second process has taken them. Where a lock does not expire within the wait, its time is moved back in the table. The first process is then continued, and 6 s later its handlers return, while those of the second still run.',
    run: zombie,
  },
  blocked: {
    title: 'Blocked event loop',
    text: 'The event loop of a process is blocked in the middle of 5 jobs, for longer than the lease or heartbeat. Then its handlers return. A second process is idle.',
    run: blocked,
  },
  terminate: {
    title: 'Connections terminated while jobs end',
    text: 'All connections are ended (`pg_terminate_backend`) every 100 ms for 2 s. The handlers of 5 jobs return in the middle of it. Afterwards 5 more jobs are written. There is one process; if it ends, it is started again.',
    run: terminate,
  },
  shutdown: {
    title: 'SIGTERM with jobs that take longer than the shutdown timeout, and ignore their signal',
    text: 'A process gets SIGTERM while it runs 5 jobs whose handlers do not return and ignore their abort signal. If it has not ended after 45 s, it is killed. A second process is idle.',
    run: shutdown,
  },
  'shutdown-signal': {
    title: 'SIGTERM with jobs that take longer than the shutdown timeout, and obey their signal',
    text: 'The same with handlers that throw when their abort signal fires.',
    run: async (trial) => shutdown(trial, { obeys: true }),
  },
  postmaster: {
    title: 'PostgreSQL down while jobs end',
    text: 'The server is shut down immediately (SIGQUIT). The handlers of 5 jobs return while it is down, for at least 2 s. It is started again, which takes longer on a busy machine, and 5 more jobs are written. Where the server is away for longer than a lease or heartbeat, jobs run a second time. There is one process; if it ends, it is started again.',
    run: postmaster,
    sharesFault: true,
  },
}

/** One side in one stage in one round, in a database of its own. `random` returns numbers from 0 to 1. */
export class Trial {
  #processes = new Set()

  constructor({ side, url, file, build, random, waitMs, blockMs, fault }) {
    Object.assign(this, { side, url, file, build, random, waitMs, blockMs, fault })
    this.system = SIDES[side]
    this.written = 0
    this.notes = []
  }

  async start(name, { gated = false, obeys = false } = {}) {
    const started = await this.#process(name)
    started.name = name
    const { url, build, file } = this
    await started.call('start', this.side, { url, build, file, name, gated, obeys })
    return started
  }

  async #process(label) {
    // A stopped or blocked process answers late.
    const started = startProcess('survivor.mjs', { label: `${this.side} ${label}`, timeoutMs: 180_000 })
    this.#processes.add(started)
    return started
  }

  async prepare() {
    this.writer = await this.#process('writer')
    await this.writer.call('migrate', this.side, { url: this.url, build: this.build })
  }

  async write(count) {
    const jobs = Array.from({ length: count }, (_, i) => this.written + i)
    await this.writer.call('write', this.side, { url: this.url, jobs })
    this.written += count
  }

  async end() {
    for (const { pid } of this.#processes) signal(pid, 'SIGCONT')
    await Promise.all([...this.#processes].map(async (one) => one.kill()))
  }

  /** A process with jobs in the middle, and whatever time the seed gives. */
  async victim(options) {
    await this.prepare()
    await this.write(CONCURRENCY)
    const victim = await this.start('first', { gated: true, ...options })
    await this.until(() => this.starts('first').size === CONCURRENCY, 120_000, 'all jobs to start')
    return victim
  }

  pause = async () => delay(this.random() * 1_000)

  lines() {
    if (!existsSync(this.file)) return []
    return readFileSync(this.file, 'utf8')
      .split('\n')
      .filter((line) => line !== '')
      .map((line) => JSON.parse(line))
  }

  /** Jobs that a process (or any) has started or ended, since a time. */
  #jobs(what, name, since) {
    return new Set(
      this.lines()
        .filter(
          (line) => line.what === what && (name === undefined || line.process === name) && line.at >= since,
        )
        .map(({ job }) => job),
    )
  }
  starts = (name, since = 0) => this.#jobs('start', name, since)
  ends = (name, since = 0) => this.#jobs('end', name, since)

  async rows() {
    return withClient(this.url, async (client) => (await client.query(this.system.rows)).rows)
  }

  async age() {
    await withClient(this.url, async (client) => client.query(this.system.age))
  }

  /** Waits for something, no longer than this; whether it came. With `what`, it must come. */
  async until(condition, ms, what) {
    const deadline = Date.now() + ms
    while (!(await condition())) {
      if (Date.now() > deadline) {
        if (what !== undefined) throw new Error(`${this.side}: waited ${ms / 1_000} s for ${what}`)
        return false
      }
      await delay(POLL_MS)
    }
    return true
  }

  /** Whether the system has nothing left to do for these jobs. */
  async settled() {
    const rows = await this.rows()
    return rows.every(({ state }) => state === 'done' || state === 'failed')
  }

  /** Seconds from a time to the last first start of the jobs in another process; undefined if some have not started. */
  lastStart(name, since, count = CONCURRENCY) {
    const first = new Map()
    for (const { what, process, job, at } of this.lines())
      if (what === 'start' && process === name && !first.has(job)) first.set(job, at)
    if (first.size < count) return undefined
    return Math.max(0, (Math.max(...first.values()) - since) / 1_000)
  }

  /** What became of the jobs, from the lines of the handlers and the rows of the system. */
  async result(more) {
    const rows = new Map((await this.rows()).map((row) => [row.job, row]))
    const ends = new Map()
    for (const { what, job } of this.lines()) if (what === 'end') ends.set(job, (ends.get(job) ?? 0) + 1)
    const counts = { once: 0, twice: 0, lost: 0, stuck: 0, stuckAlthoughDone: 0, failed: 0 }
    let evidence
    let dueSeconds
    for (let job = 0; job < this.written; job += 1) {
      const row = rows.get(job)
      const isOpen = row !== undefined && row.state !== 'done' && row.state !== 'failed'
      const done = ends.get(job) ?? 0
      if (done === 1) counts.once += 1
      if (done > 1) counts.twice += 1
      if (row?.state === 'failed') counts.failed += 1
      if (done === 0 && !isOpen) counts.lost += 1
      if (isOpen) {
        counts.stuck += 1
        if (done > 0) counts.stuckAlthoughDone += 1
        evidence ??= row.columns
        if (row.due !== null) dueSeconds = Math.max(dueSeconds ?? 0, row.due)
      }
    }
    const told = this.lines().filter(({ what, process }) => what === 'told' && process === 'first')
    const troubles = this.lines().filter(({ what }) => what === 'trouble')
    return {
      written: this.written,
      ...counts,
      dueSeconds,
      evidence,
      told: [...new Set(told.map(({ how }) => how))].toSorted((a, b) => a.localeCompare(b)),
      troubles: [...new Set(troubles.map(({ message }) => message))].slice(0, 40),
      notes: this.notes,
      ...more,
    }
  }
}

function signal(pid, name) {
  try {
    process.kill(pid, name)
  } catch (error) {
    if (error.code !== 'ESRCH') throw error
  }
}

/** The jobs that did not start elsewhere within the wait: their locks are moved back, to see that only these held them. */
async function untilTaken(trial, name, since) {
  const taken = () => trial.starts(name).size === CONCURRENCY
  if (await trial.until(taken, trial.waitMs)) {
    await trial.until(async () => trial.settled(), 20_000)
    return trial.result({ seconds: trial.lastStart(name, since) })
  }
  const result = await trial.result({})
  if (trial.system.age !== undefined) {
    await trial.age()
    result.takenAfterAgeing = await trial.until(taken, 30_000)
  }
  return result
}

async function kill(trial) {
  const victim = await trial.victim()
  await trial.start('second')
  await trial.pause()
  const at = Date.now()
  await victim.kill()
  return untilTaken(trial, 'second', at)
}

/** After the handlers of a zombie have returned: which jobs of the second process does the system call finished? */
async function countFinishedByZombie(trial) {
  await delay(SETTLING_MS)
  const rows = new Map((await trial.rows()).map((row) => [row.job, row.state]))
  const ended = trial.ends('second')
  const lines = trial.lines()
  return [...trial.starts('second')].filter((job) => {
    const state = rows.get(job) ?? 'done'
    // A process that has claimed the job once more finishes it rightly.
    const last = lines.findLast((line) => line.what === 'start' && line.job === job)
    return last.process === 'second' && !ended.has(job) && state === 'done'
  }).length
}

async function zombie(trial) {
  const victim = await trial.victim()
  const heir = await trial.start('second', { gated: true })
  await trial.pause()
  const at = Date.now()
  signal(victim.pid, 'SIGSTOP')
  if (!trial.system.expiresByItself) await trial.age()
  await trial.until(
    () => trial.starts('second').size === CONCURRENCY,
    2 * trial.waitMs,
    'the jobs to be taken',
  )
  const seconds = trial.system.expiresByItself ? trial.lastStart('second', at) : undefined
  await trial.pause()
  signal(victim.pid, 'SIGCONT')
  await delay(AWAKE_MS)
  await victim.call('open')
  await trial.until(() => trial.ends('first').size === CONCURRENCY, 60_000, 'the zombie')
  const zombieFinished = await countFinishedByZombie(trial)
  await heir.call('open')
  await trial.until(() => trial.ends('second').size === CONCURRENCY, 30_000)
  await trial.until(async () => trial.settled(), 20_000)
  return trial.result({ seconds, zombieFinished, aged: !trial.system.expiresByItself })
}

async function blocked(trial) {
  const victim = await trial.victim()
  const heir = await trial.start('second', { gated: true })
  await trial.pause()
  await victim.call('block', trial.blockMs)
  await trial.until(
    () => trial.ends('first').size === CONCURRENCY,
    trial.blockMs + 60_000,
    'the blocked process',
  )
  const zombieFinished = await countFinishedByZombie(trial)
  const taken = trial.starts('second').size
  await heir.call('open')
  await trial.until(() => trial.ends('second').size === trial.starts('second').size, 30_000)
  await trial.until(async () => trial.settled(), 20_000)
  return trial.result({ zombieFinished, taken })
}

/** Waits until everything is settled, and starts the process again if it ends. */
async function untilRecovered(trial, victim, since) {
  let current = victim
  let deaths = 0
  const watch = (one) =>
    one.ended.catch(async (error) => {
      deaths += 1
      trial.notes.push(error.message.slice(0, 2_000))
      if (deaths > 3) return
      // As a supervisor would, a second later.
      await delay(1_000)
      current = await trial.start(`restart ${deaths}`)
      watch(current)
    })
  watch(current)
  await trial.write(CONCURRENCY)
  const isRecovered = await trial.until(async () => trial.settled(), trial.waitMs)
  const seconds = isRecovered ? (Date.now() - since) / 1_000 : undefined
  return trial.result({ seconds, deaths })
}

async function terminate(trial) {
  const victim = await trial.victim()
  await trial.pause()
  let terminated = 0
  const until = Date.now() + STORM_MS
  /** @type {Promise<unknown> | undefined} */
  let opening
  await withClient(trial.url, async (client) => {
    while (Date.now() < until) {
      const { rowCount } = await client.query(
        `select pg_terminate_backend(pid) from pg_stat_activity
         where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()`,
      )
      terminated += rowCount
      if (opening === undefined && Date.now() > until - STORM_MS / 2)
        opening = victim.call('open').catch(() => {})
      await delay(STORM_INTERVAL_MS * (0.5 + trial.random()))
    }
  })
  await opening
  if (terminated === 0) throw new Error('no connection was terminated')
  return { ...(await untilRecovered(trial, victim, until)), terminated }
}

async function shutdown(trial, options) {
  const victim = await trial.victim(options)
  await trial.start('second')
  await trial.pause()
  const at = Date.now()
  const exited = victim.ended.then(
    () => 'ended',
    (error) => error.message.replace(/^.*? ended with (\S+):[^]*$/, '$1'),
  )
  signal(victim.pid, 'SIGTERM')
  const exit = await Promise.race([exited, delay(GRACE_MS, undefined, { ref: false })])
  const exitSeconds = (Date.now() - at) / 1_000
  if (exit === undefined) await victim.kill()
  const result = await untilTaken(trial, 'second', at)
  return { ...result, exit: exit ?? 'killed after 45 s', exitSeconds }
}

async function postmaster(trial) {
  const victim = await trial.victim()
  await trial.pause()
  // All sides are ready; the server goes down once for all of them, and `work` of each runs meanwhile.
  const upAt = await trial.fault(async () => {
    await delay(DOWN_MS / 2)
    await victim.call('open').catch(() => {})
    await delay(DOWN_MS / 2)
  })
  return untilRecovered(trial, victim, upAt)
}
