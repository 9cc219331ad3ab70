import { fileURLToPath } from 'node:url'
import { readdir, readFile } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import type { Database } from '../../src/postgres/database.ts'
import type { Processes, TestProcess } from './processes.ts'

/** The directory of the reference example. */
export const EXAMPLE = fileURLToPath(new URL('../../examples/payment-reconciler', import.meta.url))

/** By default the simulated chain is fast and never fails. */
const DEFAULTS = {
  CHAIN_LATENCY_MS: '1',
  CHAIN_FAILURES: '0',
  CHAIN_NONSENSE: '0',
  CHAIN_BLOCK_MS: '1',
  RECONCILE_EVERY_MS: '50',
  RECONCILE_POLL_MS: '50',
  LEASEHOLD_PORT: '',
  LEASEHOLD_LOG_LEVEL: 'info',
  LEASEHOLD_SECRET_KEY: '',
}

/** The processes of a deployment of examples/payment-reconciler. */
export interface Example {
  readonly migrate: () => Promise<void>
  /** Runs `leasehold work --only …` in the directory of the example. */
  readonly work: (
    only: string,
    env?: Readonly<Record<string, string>>,
    args?: readonly string[],
  ) => TestProcess
  readonly api: (env?: Readonly<Record<string, string>>) => TestProcess
}

export function paymentExample({ spawnNode }: Processes, databaseUrl: string): Example {
  const at = (env: Readonly<Record<string, string>>) => ({
    cwd: EXAMPLE,
    env: { ...DEFAULTS, DATABASE_URL: databaseUrl, ...env },
  })
  return {
    async migrate() {
      const migrating = spawnNode('examples/payment-reconciler/migrate.mjs', [], at({}))
      const { code } = await migrating.exited
      if (code !== 0) throw new Error(migrating.output().stderr)
    },
    work: (only, env = {}, args = []) =>
      spawnNode('dist/cli/main.js', ['work', '--only', only, ...args], at(env)),
    api: (env = {}) => spawnNode('examples/payment-reconciler/server.mjs', [], at({ PORT: '0', ...env })),
  }
}

/** Returns a value that a process prints when it has started, such as `HTTP` or `Worker id`. */
export async function shown(process: TestProcess, name: string): Promise<string> {
  const line = await process.line((text) => text.startsWith(`  ${name}`))
  return line.slice(13).trim()
}

/** The entries of its log. */
export function logOf(process: TestProcess): Record<string, unknown>[] {
  const lines = process.output().stderr.split('\n')
  return lines
    .filter((line) => line.startsWith('{') && line.endsWith('}'))
    .map((line) => JSON.parse(line) as Record<string, unknown>)
}

/** Inserts requests that are old enough to be settled by their first observation. Their ids are random. */
export async function addRequests(db: Database, count: number): Promise<void> {
  await db.query({
    text: `insert into app.payment_requests (amount, created_at, expires_at)
      select n, now() - interval '1 hour', now() - interval '1 minute' from generate_series(1, $1::int) as n`,
    values: [count],
  })
}

export async function statuses(db: Database): Promise<Record<string, number>> {
  const { rows } = await db.query<{ status: string; count: number }>({
    text: 'select status, count(*)::int as count from app.payment_requests group by status',
  })
  return Object.fromEntries(rows.map(({ status, count }) => [status, count]))
}

/** The number of requests that are not settled yet. */
export async function openRequests(db: Database): Promise<number> {
  const { pending = 0, detected = 0 } = await statuses(db)
  return pending + detected
}

/** One observation of a row: by which process, and from when to when on the clock that all processes share. */
export interface Observation {
  readonly row: string
  readonly by: string
  readonly begin: bigint
  /** Absent if the process died during the observation. */
  readonly end: bigint | undefined
}

/** Reads the journals of all processes: see `journal` in examples/payment-reconciler/observe.mjs. */
export async function readObservations(path: string): Promise<Observation[]> {
  const folder = dirname(path)
  const files = (await readdir(folder)).filter((file) => file.startsWith(`${basename(path)}.`))
  const observations = files.map(async (file) =>
    observationsOf(file.split('.').at(-1) ?? '', await readFile(join(folder, file), 'utf8')),
  )
  return (await Promise.all(observations)).flat()
}

function observationsOf(by: string, text: string): Observation[] {
  const running = new Map<string, bigint>()
  const observations: Observation[] = []
  for (const line of text.split('\n').filter(Boolean)) {
    const [what, row = '', at = '0'] = line.split(' ')
    if (what === 'begin') {
      running.set(row, BigInt(at))
      continue
    }
    const begin = running.get(row)
    if (begin === undefined) throw new Error(`${by} ended an observation of ${row} that it had not begun`)
    running.delete(row)
    observations.push({ row, by, begin, end: BigInt(at) })
  }
  return [...observations, ...[...running].map(([row, begin]) => ({ row, by, begin, end: undefined }))]
}

/** Returns concurrent observations of the same row. An observation of a killed process lasted until its death. */
export function overlaps(
  observations: readonly Observation[],
  deaths: ReadonlyMap<string, bigint> = new Map(),
): string[] {
  const byRow = new Map<string, Observation[]>()
  for (const observation of observations)
    byRow.set(observation.row, [...(byRow.get(observation.row) ?? []), observation])
  return [...byRow].flatMap(([row, ofRow]) => {
    const inOrder = ofRow.toSorted((a, b) => (a.begin < b.begin ? -1 : 1))
    return inOrder.flatMap((observation, i) => {
      const next = inOrder[i + 1]
      const end = observation.end ?? deaths.get(observation.by)
      if (end === undefined)
        return [`${row}: ${observation.by} never ended its observation, and nobody killed it`]
      return next !== undefined && next.begin < end
        ? [`${row}: by ${observation.by} and ${next.by} at once`]
        : []
    })
  })
}
