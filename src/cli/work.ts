/** `leasehold work`: runs the declared workers on a given database, for production. */
import type { Settings } from '../config/load.ts'
import { withoutPassword } from '../database-url.ts'
import { LeaseholdError, messageOf } from '../errors.ts'
import { nearest } from '../nearest.ts'
import { migrationsCurrent } from '../observe/health.ts'
import { type Database, isPermissionDenied, isUnavailable } from '../postgres/index.ts'
import { dispatcher, WEBHOOKS } from '../webhooks/dispatcher/dispatcher.ts'
import type { WorkDeclaration } from '../worker/index.ts'
import { REAPER } from '../worker/work-declaration.ts'
import type { Run } from './command.ts'
import { givenDatabase, onceAvailable, secretKeyOf, startDatabase } from './database.ts'
import { wholeFlag } from './flags.ts'
import { runProcess, type Startup } from './process.ts'
import { orderOf, runSupervised, type WorkOptions } from './supervised.ts'
import { MAX_PROCESSES, supervise } from './supervisor.ts'
import { webhookNetwork } from './webhooks/network.ts'
import { type ChosenWork, readyMessage, startWorkerProcess } from './worker-process.ts'

/**
 * Runs until the process is told to stop. The exit code is 1 when rows were left to the reaper. With `--processes` the
 * workers run in processes of their own, which this one supervises.
 */
export async function work(run: Run): Promise<number> {
  const { loaded, log, flags } = run
  const order = orderOf(flags)
  const processes = wholeFlag(flags, 'processes', MAX_PROCESSES) ?? 1
  const databaseUrl = (await givenDatabase(loaded)) ?? noDatabase()
  const only = typeof flags['only'] === 'string' ? flags['only'] : undefined
  const chosen = chooseWork(await declaredWork(loaded.settings), only)
  const openDatabase = async (startup: Startup): Promise<Database> => {
    const db = await startDatabase(databaseUrl, loaded, log, startup)
    await onceAvailable(loaded, log, startup, async () => refuseOutdated(db, loaded.settings.schema))
    return db
  }
  const options = { run, databaseUrl, work: chosen, openDatabase }
  if (order !== undefined) return runSupervised(options, order)
  return processes === 1 ? runAlone(options) : supervise(options, processes)
}

async function runAlone({ run, databaseUrl, work: chosen, openDatabase }: WorkOptions): Promise<number> {
  const { loaded, log, version, flags } = run
  return runProcess(run, async (startup) => {
    const db = await openDatabase(startup)
    const http = flags['http'] === false ? 'off' : 'anyFreePort'
    const options = { loaded, version, log, db, databaseUrl, work: chosen, http } as const
    const running = await startWorkerProcess(options, startup)
    return readyMessage(version, running, withoutPassword(databaseUrl))
  })
}

/** A worker for production does not start a database of its own: nobody else would see what it did there. */
export function noDatabase(): never {
  throw new LeaseholdError('SETTING_INVALID', 'databaseUrl is not set.', {
    remedy:
      'Set DATABASE_URL or --database-url. To run workers on an embedded PostgreSQL, use `leasehold up`.',
  })
}

/** `work` does not migrate: many of them start at once, and their account need not own the schema. */
export async function refuseOutdated(db: Database, schema: string): Promise<void> {
  try {
    await migrationsCurrent(db, schema).run()
  } catch (error) {
    if (isPermissionDenied(error) || isUnavailable(error)) throw error
    const reason = messageOf(error)
    throw new LeaseholdError('SETTING_INVALID', `The database is not ready for this release: ${reason}.`, {
      cause: error,
    })
  }
}

/** What a process could run, and all tables that are worked on, by this process or by others. */
export interface DeclaredWork {
  readonly workers: readonly WorkDeclaration[]
  /** `workers`, and the dispatcher even where it cannot run: reaping and retention need no key for secrets. */
  readonly declared: readonly WorkDeclaration[]
}

/**
 * The workers of the config file, and the dispatcher of webhooks, which needs no code of the user. Without a key for the
 * secrets of endpoints it cannot sign, so that it does not run.
 */
export async function declaredWork(settings: Settings): Promise<DeclaredWork> {
  const { workers, schema, webhookProxy } = settings
  if (workers.some(({ name }) => name === WEBHOOKS)) return { workers, declared: workers }
  const secretKey = await secretKeyOf(settings)
  const { proxied: _, ...network } = webhookNetwork(settings)
  const declaration = dispatcher({
    schema,
    network,
    ...(secretKey === undefined ? {} : { secretKey }),
    ...(webhookProxy === undefined ? {} : { proxy: webhookProxy }),
  })
  // Only the handler knows the type of the rows; here they are passed on.
  const declared = [...workers, declaration as unknown as WorkDeclaration]
  return { workers: secretKey === undefined ? workers : declared, declared }
}

/** `--only emails,reaper`; without it, everything that can run, and the reaper. */
export function chooseWork({ workers, declared }: DeclaredWork, only?: string): ChosenWork {
  const wanted = only?.split(',').map((name) => name.trim())
  // A process that only reaps needs no declaration: the tables of webhooks are always there.
  if (workers.length === 0 && wanted?.includes(REAPER) !== true) {
    throw new LeaseholdError('SETTING_INVALID', 'There is nothing to work on: no workers are declared.', {
      remedy:
        'Declare them in leasehold.config.mjs: `export default { workers: [{ name, table, handle }] }`, and run this command in its directory.',
    })
  }
  if (only === undefined || wanted === undefined) return { workers, reaper: true, declared }
  const known = [...new Set(workers.flatMap(({ name, role = name }) => [role, name])), REAPER]
  const unknown = wanted.find((name) => !known.includes(name))
  if (unknown !== undefined) throw unknownWorker(only, unknown, known)
  return {
    workers: workers.filter(({ name, role = name }) => wanted.includes(name) || wanted.includes(role)),
    reaper: wanted.includes(REAPER),
    declared,
  }
}

function unknownWorker(only: string, unknown: string, known: readonly string[]): LeaseholdError {
  const meant = nearest(unknown, known)
  const hint =
    unknown === WEBHOOKS
      ? ' The dispatcher of webhooks needs LEASEHOLD_SECRET_KEY, which encrypts the secrets of endpoints.'
      : meant === undefined
        ? ''
        : ` Did you mean ${meant}?`
  return new LeaseholdError(
    'SETTING_INVALID',
    `--only is ${JSON.stringify(only)}, but there is no worker ${JSON.stringify(unknown)}: there are ${known.join(', ')}.`,
    { remedy: `Name one or more of them, separated by commas.${hint}` },
  )
}
