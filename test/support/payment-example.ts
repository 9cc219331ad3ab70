/** The reference example, examples/payment-reconciler, as the processes that a deployment has. */
import { fileURLToPath } from 'node:url'
import type { Database } from '../../src/postgres/database.ts'
import type { Processes, TestProcess } from './processes.ts'

export const EXAMPLE = fileURLToPath(new URL('../../examples/payment-reconciler', import.meta.url))

/** A chain that is quick and never fails, unless a test says otherwise. */
const CALM = {
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

export interface Example {
  readonly migrate: () => Promise<void>
  /** `leasehold work --only …` in the directory of the example. */
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
    env: { ...CALM, DATABASE_URL: databaseUrl, ...env },
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

/** What a process shows about itself once it is up: `HTTP`, `Worker id`. */
export async function shown(process: TestProcess, name: string): Promise<string> {
  const line = await process.line((text) => text.startsWith(`  ${name}`))
  return line.slice(13).trim()
}

/** The lines of its log. */
export function logOf(process: TestProcess): Record<string, unknown>[] {
  const lines = process.output().stderr.split('\n')
  return lines
    .filter((line) => line.startsWith('{') && line.endsWith('}'))
    .map((line) => JSON.parse(line) as Record<string, unknown>)
}

/** Requests that are old enough to be decided at the first look. Returns nothing: their ids are chance. */
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

/** How many are not decided yet. */
export async function openRequests(db: Database): Promise<number> {
  const { pending = 0, detected = 0 } = await statuses(db)
  return pending + detected
}
