import { tableName } from '../lease/index.ts'
import { pendingAge, pendingCount } from '../observe/index.ts'
import type { Database } from '../postgres/index.ts'
import { listWorkers, type WorkDeclaration, type WorkerRow } from '../worker/index.ts'
import { outboxJson, outboxText, readOutbox } from './outbox-status.ts'
import type { Run } from './run.ts'
import { withRunningDatabase } from './running-database.ts'
import { readSync, syncJson, syncText } from './sync-status.ts'
import { columns, duration, printableJson } from './text-columns.ts'
import { readWebhooks, webhooksJson, webhooksText } from './webhooks-status.ts'

/** A table whose rows cannot be counted in this time is shown without numbers. */
const COUNT_TIMEOUT_MS = 5_000

type TableStatus = { readonly table: string } & (
  | { readonly problem: string }
  | {
      readonly pending: number
      readonly leased: number
      /** From this on nobody counted further. */
      readonly most: number
      /** Null: the table has no moment to tell it by. */
      readonly oldestPendingMs: number | null
    }
)

/** Who works, and what waits. */
export async function status({ loaded, log, print, flags, terminal }: Run): Promise<number> {
  const { schema } = loaded.settings
  return withRunningDatabase(loaded, log, async (db) => {
    const workers = await listWorkers(db, schema)
    const outbox = await readOutbox(db, schema)
    const webhooks = await readWebhooks(db, schema)
    const sync = await readSync(db, schema)
    // These have lines of their own, also when a worker of this config works on them.
    const ours = new Set(
      ['outbox', 'webhook_outbox', 'sync_jobs', 'sync_checkpoints'].map((table) => `${schema}.${table}`),
    )
    const declared = loaded.settings.workers.filter(({ table }) => !ours.has(tableName(table)))
    const tables = new Map(declared.map(({ table }) => [tableName(table), table]))
    const found = await Promise.all([...tables.values()].map(async (table) => readTable(db, table)))
    const now = new Date()
    if (flags['json'] === true) {
      const read = { outbox: outboxJson(outbox), webhooks: webhooksJson(webhooks), sync: syncJson(sync) }
      print(`${printableJson({ workers, ...read, tables: found })}\n`)
      return 0
    }
    print(`${aboutWorkers(workers, now)}\n\n${outboxText(outbox, schema, now, terminal.width)}\n`)
    print(`\n${webhooksText(webhooks, schema, now, terminal.width)}\n`)
    print(`\n${syncText(sync, schema, terminal.width)}\n`)
    if (found.length > 0) {
      print(`\n${columns([['TABLE', 'PENDING', 'LEASED', 'OLDEST PENDING'], ...found.map(aboutTable)])}\n`)
    }
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

async function readTable(db: Database, table: WorkDeclaration['table']): Promise<TableStatus> {
  const name = tableName(table)
  try {
    return await db.transaction(
      async (tx) => {
        const counts = await pendingCount(tx, table)
        const age = await pendingAge(table)(tx)
        return { table: name, ...counts, oldestPendingMs: age === undefined ? null : age * 1_000 }
      },
      { queryTimeoutMs: COUNT_TIMEOUT_MS },
    )
  } catch (error) {
    return { table: name, problem: error instanceof Error ? error.message : String(error) }
  }
}

function aboutTable(status: TableStatus): string[] {
  if ('problem' in status) return [status.table, '?', '?', status.problem]
  const { pending, leased, most, oldestPendingMs } = status
  const oldest = oldestPendingMs === null ? 'unknown' : pending === 0 ? '-' : duration(oldestPendingMs)
  return [status.table, counted(pending, most), counted(leased, most), oldest]
}

function counted(count: number, most: number): string {
  return count >= most ? `${most} or more` : String(count)
}
