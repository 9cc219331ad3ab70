/** Runs a history on the real table, race by race, and checks the whole table after each. */
import { check, type Model } from './check.ts'
import { type Image, readImage } from './image.ts'
import { objection, type ModelRow } from './row.ts'
import type { Operation, Race } from './operations.ts'
import { prepare, type Report } from './perform.ts'
import { type World, resetWorld } from './world.ts'

export interface History {
  readonly model: Model
  readonly image: Image
}

/** Is called after every race, with the model as it was before. */
export type Witness = (reports: readonly Report[], before: Model) => void

export async function startHistory(world: World): Promise<History> {
  await resetWorld(world)
  return { model: new Map(), image: await readImage(world.admin, world.table) }
}

export async function liveThrough(
  world: World,
  history: History,
  race: Race,
  witness: Witness = () => {},
): Promise<History & { readonly reports: readonly Report[] }> {
  const ids = [...history.model.keys()]
  const started = race.map((operation) => prepare(world, ids, operation))
  const reports = (await Promise.all(started.map(async (start) => start()))).flat()
  for (const { worker, lease } of reports.flatMap(({ given }) => given)) worker.leases.push(lease)

  const after = await readImage(world.admin, world.table)
  const verdict = check(world.table, {
    ...history,
    before: history.image,
    operations: race.length,
    reports,
    after,
  })
  if (!verdict.legal) throw objection(`${verdict.why}, after ${JSON.stringify(race)}`)
  witness(reports, history.model)
  return { model: verdict.model, image: after, reports }
}

/** Checks that nothing is lost: after any history, ordinary work finishes every row. */
export async function drain(world: World, history: History, witness: Witness): Promise<void> {
  let now = history
  const live = async (operation: Operation): Promise<readonly Report[]> => {
    const next = await liveThrough(world, now, [operation], witness)
    now = next
    return next.reports
  }
  while (world.late.length > 0) await live({ verb: 'commit' })
  const everyRow = [...now.model.keys()].map((_, n) => n)
  await live({ verb: 'expire', rows: everyRow })
  await live({ verb: 'reap', worker: 0, limit: 100 })
  await live({ verb: 'arrive' })
  // A worker to which nothing is announced looks for suspects every 30 s, which is more turns than it has here.
  for (const { cycle } of world.workers) cycle.wake()
  // A cursor may find nothing once before it scans from the start, and a claim takes one suspect at a time.
  const mostTurns = 4 * (everyRow.length + world.workers.length)
  for (let turn = 0; turn < mostTurns && [...now.model.values()].some(isOpen); turn += 1) {
    const worker = turn % world.workers.length
    const [claim] = await live({ verb: 'claim', worker, limit: 2, from: 'cursor' })
    const picks = [...(claim?.events.keys() ?? [])].map((_, n) => n)
    if (picks.length > 0) {
      await live({ verb: 'settle', worker, leasesOf: worker, picks, as: 'done', within: 'statement' })
    }
  }
  const unfinished = [...now.model.values()].filter(isOpen)
  if (unfinished.length > 0)
    throw objection(`lost: ${unfinished.map(({ id }) => id).join(', ')} never finish`)
}

function isOpen({ state }: ModelRow): boolean {
  return state === 'open'
}
