/**
 * Whether what happened may have happened.
 *
 * A batch is not atomic across rows (two claims at once share the rows between them), but on each row the operations
 * of a race take effect one after the other. So every row is judged alone: some order of the operations on it must be
 * legal at every step and end in the row as the table has it now. Rows that nobody says to have changed must be what
 * they were, to the last bit.
 */
import { differences, type Image } from './image.ts'
import type { Report } from './perform.ts'
import { changes, follow, isClaimable, type ModelRow, type RowEvent, touches } from './row.ts'
import type { ModelTable } from './tables.ts'

export type Model = ReadonlyMap<string, ModelRow>

export interface Happened {
  readonly model: Model
  readonly before: Image
  readonly reports: readonly Report[]
  readonly after: Image
}

export type Verdict =
  | { readonly legal: true; readonly model: Model }
  | { readonly legal: false; readonly why: string }

export function check(table: ModelTable, happened: Happened): Verdict {
  const { model, after, reports } = happened
  const ids = new Set([
    ...model.keys(),
    ...after.rows.keys(),
    ...reports.flatMap(({ events }) => [...events.keys()]),
  ])
  const next = new Map<string, ModelRow>()
  for (const id of ids) {
    const judged = judgeRow(table, happened, id)
    if (typeof judged === 'string') return { legal: false, why: `row ${id}: ${judged}` }
    next.set(id, judged)
  }
  const why = reports
    .map((report) => judgeChoice(table, happened, report))
    .find((found) => found !== undefined)
  return why === undefined ? { legal: true, model: next } : { legal: false, why }
}

/** The row as it is now, or why it cannot be. */
function judgeRow(
  table: ModelTable,
  { model, before, reports, after }: Happened,
  id: string,
): ModelRow | string {
  const start = model.get(id)
  const events = reports.flatMap(({ events }) => events.get(id) ?? [])
  const image = after.rows.get(id)
  if (image === undefined) return 'it is lost: the table no longer has it'
  if (!events.some(changes) && image.text !== before.rows.get(id)?.text) {
    return `nobody says to have changed it, but it was ${before.rows.get(id)?.text} and is ${image.text}`
  }

  const { onExpiry, lease } = table.declaration
  const objections = new Set<string>()
  for (const order of orders(events)) {
    let row = start
    let why: string | undefined
    for (const event of order) {
      const contended = events.some((other) => other !== event && touches(other))
      const context = {
        onExpiry,
        tokenColumn: lease.token !== undefined,
        start,
        contended,
        startedAt: before.now,
      }
      const step = follow(row, event, context)
      if (!step.legal) {
        why = step.why
        break
      }
      row = step.row
    }
    if (why === undefined && row === undefined) why = 'it is there, but nobody inserted it'
    if (why === undefined && row !== undefined) {
      const wrong = differences(image, table.columns(row), before.rows.get(id), after.now)
      if (wrong.length === 0) return row
      why = `after ${order.map(({ type }) => type).join(', ')}: ${wrong.join('; ')}`
    }
    if (why !== undefined) objections.add(why)
  }
  const all = [...objections]
  return all.length === 1 ? String(all[0]) : `no order of the operations explains it (${all.join(' | ')})`
}

/** Whether a claim or a reap took the rows it had to take, and left none behind that it should have found. */
function judgeChoice(table: ModelTable, happened: Happened, report: Report): string | undefined {
  const { operation, events, exhaustive } = report
  if (operation.verb !== 'claim' && operation.verb !== 'reap') return undefined
  const { model, before, reports } = happened
  const eligible = [...before.rows.keys()].filter((id) => {
    const row = model.get(id)
    if (row === undefined) return false
    return operation.verb === 'claim'
      ? isClaimable(row, table.declaration.onExpiry)
      : row.lease !== undefined && !row.lease.alive
  })
  const taken = [...events.keys()]
  if (taken.length > operation.limit)
    return `${operation.verb} took ${taken.length} rows of ${operation.limit}`

  const untouched = eligible.filter((id) => !reports.some(({ events }) => isTouched(events.get(id))))
  if (exhaustive && untouched.length > 0) {
    return `${operation.verb} left rows behind that are there for it: ${untouched.join(', ')}`
  }
  if (operation.verb === 'reap' || reports.length > 1) return undefined
  const inOrder =
    operation.from === 'start' ? eligible.slice(0, taken.length) : eligible.filter((id) => events.has(id))
  return inOrder.join() === taken.join()
    ? undefined
    : `claimed ${taken.join()} instead of ${inOrder.join()}, out of order`
}

function isTouched(event: RowEvent | undefined): boolean {
  return event !== undefined && touches(event)
}

function orders<T>(items: readonly T[]): T[][] {
  if (items.length === 0) return [[]]
  return items.flatMap((first, i) => orders(items.toSpliced(i, 1)).map((rest) => [first, ...rest]))
}
