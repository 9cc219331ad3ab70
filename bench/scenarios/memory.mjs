// How much memory a relay needs for a large backlog, in a process that sets no flags of Node and in `leasehold work`.
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { entryOf } from '../builds.mjs'
import { TYPES } from '../event-types.mjs'
import { insertBacklog, until, verifyPublished, withOutbox } from '../outbox-database.mjs'
import { measureInTurns, present, valueCheck } from '../rounds.mjs'
import { startProgram } from '../called-process.mjs'

const LIMIT_MB = 150
const POLL_MS = 500

const SIDES = [
  { title: 'a plain process, 0.2 KB', payloadBytes: 200, drain: drainInPlainProcess },
  { title: 'leasehold work, 0.2 KB', payloadBytes: 200, drain: drainByCommand },
  { title: 'a plain process, 1 KB', payloadBytes: 1_000, drain: drainInPlainProcess },
]

export const scenario = {
  name: 'memory',
  title: 'Memory with a large backlog',
  reach: 'memory with a backlog of 1M: ≤ 150 MB, also in a process of the user’s that sets no flags',

  async run({ server, build, quick, sized, rounds, print, signal, timeoutMs }) {
    if (process.platform !== 'linux')
      throw new Error('the largest resident memory of a process is read from /proc, which only Linux has')
    // With fewer, the heap does not reach its size.
    const events = sized({ quick: 100_000, short: 300_000, full: 1_000_000 })
    const sides = quick ? SIDES.slice(0, 2) : SIDES
    const remarks = [
      `The largest resident memory (VmHWM) of the process that drains ${events} events without keys, with the thread of its heartbeat. Handlers return at once. 1 MB is 1,000,000 bytes.`,
      'A plain process: `node` without flags, and a program that calls startRuntime. `leasehold work` is the command; it sets flags of V8 by itself.',
    ]
    const readings = await measureInTurns(
      { sides, rounds, print, signal, remarks, title: 'memory', nameOf: ({ title }) => title },
      async ({ payloadBytes, drain }) =>
        withOutbox({ server, build, timeoutMs }, async ({ url, startRelay }) => {
          await insertBacklog(url, { count: events, payloadBytes })
          await server.vacuum(url)
          const memoryMB = await drain({ url, startRelay, build, events, timeoutMs, signal })
          await verifyPublished(url, events)
          return { memoryMB }
        }),
    )
    return {
      series: [...readings].map(([{ title }, own]) => ({
        side: 'leasehold',
        variant: title,
        metric: 'largest resident memory',
        unit: 'MB',
        better: 'lower',
        values: own.map(({ memoryMB }) => memoryMB),
        details: {},
      })),
      checks: present(
        sides.map((side) =>
          valueCheck({
            text: `${side.title}: ≤ 150 MB`,
            values: readings.get(side)?.map(({ memoryMB }) => memoryMB),
            unit: 'MB',
            comparison: '<=',
            limit: LIMIT_MB,
          }),
        ),
      ),
      remarks,
    }
  },
}

async function drainInPlainProcess({ url, startRelay, events }) {
  const relay = await startRelay()
  await relay.call('drain', 'relay', { url, events })
  const memoryMB = await largestMemory(relay.pid)
  await relay.call('stop', 'relay')
  return memoryMB
}

async function drainByCommand({ url, build, events, timeoutMs, signal }) {
  const directory = await mkdtemp(join(tmpdir(), 'leasehold-bench-work-'))
  try {
    await writeFile(join(directory, 'leasehold.config.mjs'), configuration(build))
    const program = startProgram([join(build, 'bin/leasehold.cjs'), 'work', '--no-http'], {
      label: 'leasehold work',
      cwd: directory,
      env: { DATABASE_URL: url },
    })
    try {
      await untilPublished(url, { events, program, timeoutMs, signal })
      const memoryMB = await largestMemory(program.pid)
      await program.kill('SIGTERM')
      return memoryMB
    } finally {
      await program.kill()
    }
  } finally {
    await rm(directory, { recursive: true, force: true })
  }
}

async function untilPublished(url, { events, program, timeoutMs, signal }) {
  const ended = new AbortController()
  const published = until(url, `count(*) = ${events} from leasehold.outbox where status = 'PUBLISHED'`, {
    timeoutMs,
    signal: AbortSignal.any([ended.signal, ...(signal ? [signal] : [])]),
    pollMs: POLL_MS,
  })
  try {
    await Promise.race([published, program.ended])
  } finally {
    // Its connection is closed before the database is dropped.
    ended.abort()
    await published.catch(() => {})
  }
}

function configuration(build) {
  const url = (name) => JSON.stringify(pathToFileURL(entryOf(build, name)).href)
  return `import { relay } from ${url('./outbox')}
import { handlers } from ${url('./publishers/handlers')}
export default { workers: [relay({ publisher: handlers({ '${TYPES.happened}': async () => undefined }) })] }
`
}

/** Megabytes that were resident at most, since the process began its program. */
async function largestMemory(pid) {
  const status = await readFile(`/proc/${pid}/status`, 'utf8')
  return (Number(/^VmHWM:\s+(\d+) kB$/m.exec(status)[1]) * 1_024) / 1e6
}
