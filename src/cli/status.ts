import { tableName } from '../lease/index.ts'
import { pendingAge, pendingCount, type Logger } from '../observe/index.ts'
import type { Database } from '../postgres/index.ts'
import { listWorkers, type WorkDeclaration, type WorkerRow } from '../runtime/index.ts'
import type { LoadedSettings } from '../settings/index.ts'
import { withRunningDatabase } from './running-database.ts'
import { columns, duration } from './text-columns.ts'

export interface StatusOptions {
  readonly loaded: LoadedSettings
  readonly log: Logger
  readonly print: (text: string) => void
}

/** A table whose rows cannot be counted in this time is shown without numbers. */
const COUNT_TIMEOUT_MS = 5_000

/** Who works, and what waits. */
export async function status({ loaded, log, print }: StatusOptions): Promise<number> {
  const { schema, workers } = loaded.settings
  return withRunningDatabase(loaded, log, async (db) => {
    print(`${aboutWorkers(await listWorkers(db, schema), new Date())}\n`)
    const tables = new Map(workers.map((declared) => [tableName(declared.table), declared.table]))
    const lines = await Promise.all([...tables.values()].map(async (table) => aboutTable(db, table)))
    if (lines.length > 0)
      print(`\n${columns([['TABLE', 'PENDING', 'LEASED', 'OLDEST PENDING'], ...lines])}\n`)
    return 0
  })
}

function aboutWorkers(workers: readonly WorkerRow[], now: Date): string {
  const present = workers.filter(({ state }) => state !== 'stopped')
  const stopped = workers.length - present.length
  const note = stopped === 0 ? '' : `\n${stopped} more stopped within the last day.`
  if (present.length === 0) return `No workers.${note}`
  const lines = present.map(({ id, state, roles, inFlight, lastSeenAt, version }) => [
    id,
    state,
    roles.join(', '),
    String(inFlight),
    `${duration(now.getTime() - lastSeenAt.getTime())} ago`,
    version,
  ])
  const reaper = present.some(({ state, roles }) => state === 'alive' && roles.includes('reaper'))
  const warning = reaper ? '' : '\nNo reaper is alive: run `leasehold work --only reaper`.'
  return `${columns([['WORKER', 'STATE', 'ROLES', 'IN FLIGHT', 'LAST SEEN', 'VERSION'], ...lines])}${note}${warning}`
}

async function aboutTable(db: Database, table: WorkDeclaration['table']): Promise<string[]> {
  const name = tableName(table)
  try {
    const asked = async (): Promise<string[]> =>
      db.transaction(
        async (tx) => {
          const { pending, leased, most } = await pendingCount(tx, table)
          const age = await pendingAge(table)(tx)
          const oldest = age === undefined ? 'unknown' : pending === 0 ? '-' : duration(age * 1_000)
          return [name, counted(pending, most), counted(leased, most), oldest]
        },
        { queryTimeoutMs: COUNT_TIMEOUT_MS },
      )
    return await asked()
  } catch (error) {
    return [name, '?', '?', error instanceof Error ? error.message : String(error)]
  }
}

function counted(count: number, most: number): string {
  return count >= most ? `${most} or more` : String(count)
}
