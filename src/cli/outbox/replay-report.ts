/** What a replay came to, for people and for scripts. */
import type { ReplayProgress } from '../../outbox/admin/replay-run.ts'
import type { Replayed } from '../../outbox/admin/replay.ts'
import type { Status } from '../../outbox/transitions.ts'
import { counted, grouped, printableJson, relative } from '../output.ts'

export interface LeftOut {
  readonly id: string
  readonly status: Status | 'UNKNOWN'
}

/** `12,000 dead events`, `12,000 events (11,990 dead, 10 published)`. */
export function byState({ matched, dead, published }: Replayed): string {
  const all = dead + published
  // With a limit the states are those of all that match, of which only some are taken.
  const of = matched < all ? `the oldest ${grouped(matched)} of ` : ''
  if (published === 0) return `${of}${counted(all, 'dead event')}`
  if (dead === 0) return `${of}${counted(all, 'published event')}`
  return `${of}${counted(all, 'event')} (${grouped(dead)} dead, ${grouped(published)} published)`
}

export function replayText(done: Replayed, leftOut: readonly LeftOut[], now: Date): string {
  return [summary(done, now), ...leftOut.map(why)].join('\n')
}

export function replayJson(done: Replayed, leftOut: readonly LeftOut[]): string {
  const { dryRun, matched, replayed, replayedBefore, published, dead, replay, firstId, lastId, lastDueAt } =
    done
  return printableJson({
    dryRun,
    matched,
    replayed,
    replayedBefore,
    published,
    dead,
    finished: done.finished,
    replay: replay ?? null,
    firstId: firstId ?? null,
    lastId: lastId ?? null,
    lastDueAt: lastDueAt ?? null,
    leftOut,
  })
}

function summary(done: Replayed, now: Date): string {
  const { dryRun, matched, replayed, replayedBefore, replay, lastDueAt, finished } = done
  if (!finished && replay === undefined) return 'Stopped before anything was changed.'
  if (matched === 0) return dryRun ? 'No event would be replayed.' : 'No event was replayed: none matches.'
  if (dryRun) return `Would replay ${byState(done)}. Nothing was changed.`
  if (replay === undefined) return 'No event was replayed: somebody else was faster.'
  const before = replayedBefore > 0 ? ` more, after ${grouped(replayedBefore)} before` : ''
  const due =
    lastDueAt !== undefined && lastDueAt.getTime() - now.getTime() > 1_000
      ? ` The last is due ${relative(lastDueAt, now)}, at ${lastDueAt.toISOString()}.`
      : ''
  if (finished) return `Replayed ${counted(replayed, 'event')}${before}.${due} In the audit it is ${replay}.`
  return `Stopped.${due} ${halfWay({ replay, matched, replayed: replayed + replayedBefore })}`
}

/** What a replay that did not come to its end has done, and how to go on. */
export function halfWay({ replay, matched, replayed }: ReplayProgress): string {
  return `${grouped(replayed)} of ${counted(matched, 'event')} were replayed, the rest is as it was. Go on with: leasehold outbox replay --resume ${replay}`
}

function why({ id, status }: LeftOut): string {
  if (status === 'UNKNOWN') return `${id} was not replayed: there is no such event.`
  return `${id} was not replayed: it is ${status}, and on its way anyhow.`
}
