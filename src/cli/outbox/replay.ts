import { listEvents, type EventSummary } from '../../outbox/admin/browse.ts'
import { isUuid } from '../../admin/request-checks.ts'
import { isEmptyFilter, type EventFilter } from '../../outbox/admin/browse-filter.ts'
import type { ReplayProgress } from '../../outbox/admin/replay-run.ts'
import { replay, type Replayed, type ReplayOptions, resumeReplay } from '../../outbox/admin/replay.ts'
import type { Database } from '../../postgres/index.ts'
import { type Run, UsageError } from '../command.ts'
import { withOutbox } from '../database.ts'
import { isSet, positiveFlag, principalOf, reasonOf, textFlag, wholeFlag } from '../flags.ts'
import { grouped } from '../output.ts'
import { withProgress } from '../process.ts'
import { readFilter } from './filter-flags.ts'
import { byState, halfWay, type LeftOut, replayJson, replayText } from './replay-report.ts'

/** More ids than this are not looked up one by one to say what became of each. */
const MOST_LOOKED_UP = 1_000

/** `leasehold outbox replay`; the exit code is 1 when it was stopped, or an event that was named was not replayed. */
export async function replayCommand(run: Run): Promise<number> {
  const { flags } = run
  const act = textFlag(flags, 'resume') === undefined ? prepareReplay(run) : prepareResume(run)
  return withProgress<ReplayProgress>(run, { line: progressLine, halfWay }, async (followed) =>
    withOutbox(run, async (db) => act(db, followed)),
  )
}

type Following = Pick<ReplayOptions, 'signal' | 'onProgress'>
type Act = (db: Database, following: Following) => Promise<number>

function prepareReplay(run: Run): Act {
  const { flags, args: ids, loaded, terminal } = run
  const dryRun = isSet(flags, 'dryRun')
  const filter = readFilter(flags, new Date())
  refuseUnclear(ids, filter)
  const rate = positiveFlag(flags, 'rate', 'give the events per second, above 0.')
  const limit = wholeFlag(flags, 'limit', Number.MAX_SAFE_INTEGER)
  const who = dryRun ? {} : { reason: reasonOf(flags), principal: principalOf(run) }
  const asks = !dryRun && ids.length === 0 && !isSet(flags, 'yes')
  const { ask } = terminal
  if (asks && ask === undefined) {
    throw new UsageError(
      '--yes is missing: a replay by filter asks before it changes anything, and nobody is at this terminal. ' +
        'Count with --dry-run, then add --yes.',
    )
  }
  const { schema } = loaded.settings
  const options = { schema, filter, rate, limit, ...who, ...(ids.length === 0 ? {} : { ids }) }
  return async (db, following) => {
    const leftOut = await whatIsLeftOut(db, schema, ids)
    if (asks && ask !== undefined) {
      const counted = await replay(db, { ...options, dryRun: true, signal: following.signal })
      if (counted.matched > 0 && !(await agreed(ask, counted))) {
        terminal.err('Nothing was changed.\n')
        return 1
      }
    }
    const done = await replay(db, { ...options, dryRun, ...following })
    return report(run, done, leftOut)
  }
}

function prepareResume(run: Run): Act {
  const { flags, args, loaded } = run
  const id = textFlag(flags, 'resume') ?? ''
  if (args.length > 0 || !isEmptyFilter(readFilter(flags, new Date())) || isSet(flags, 'dryRun')) {
    throw new UsageError(
      '--resume goes on with a replay as it was begun: leave out ids, filters and --dry-run.',
    )
  }
  const principal = principalOf(run)
  const { schema } = loaded.settings
  return async (db, following) =>
    report(run, await resumeReplay(db, id, { schema, principal, ...following }), [])
}

function report({ flags, print }: Run, done: Replayed, leftOut: readonly LeftOut[]): number {
  print(`${isSet(flags, 'json') ? replayJson(done, leftOut) : replayText(done, leftOut, new Date())}\n`)
  return done.finished && leftOut.length === 0 ? 0 : 1
}

function refuseUnclear(ids: readonly string[], filter: EventFilter): void {
  for (const id of ids) {
    if (/^\d{1,18}$/.test(id) || isUuid(id)) continue
    throw new UsageError(
      `${JSON.stringify(id)} is no event: give the number of an event, or its event id, a uuid.`,
    )
  }
  if (ids.length > 0 || !isEmptyFilter(filter)) return
  throw new UsageError(
    'say which events: by their ids, or with --status, --type, --key, --from, --to or --error. ' +
      '`--status dead` means all that is dead.',
  )
}

/** Those that were named and cannot be replayed, as they are before anything happens. */
async function whatIsLeftOut(db: Database, schema: string, ids: readonly string[]): Promise<LeftOut[]> {
  if (ids.length === 0 || ids.length > MOST_LOOKED_UP) return []
  const { events } = await listEvents(db, { ids }, { schema, limit: MOST_LOOKED_UP })
  const known = new Map<string, EventSummary>(
    events.flatMap((event) => [
      [event.id, event],
      [event.eventId, event],
    ]),
  )
  return ids.flatMap((id) => {
    const status = known.get(isUuid(id) ? id.toLowerCase() : String(BigInt(id)))?.status
    return status === 'PUBLISHED' || status === 'DEAD' ? [] : [{ id, status: status ?? 'UNKNOWN' }]
  })
}

async function agreed(ask: (question: string) => Promise<string>, counted: Replayed): Promise<boolean> {
  const answer = await ask(`Replay ${byState(counted)}? [y/N] `)
  return /^y(es)?$/i.test(answer.trim())
}

function progressLine({ matched, replayed }: ReplayProgress): string {
  return `\r${grouped(replayed)} of ${grouped(matched)}${replayed >= matched ? '\n' : ''}`
}
