/**
 * Judges whether the results of a race are possible.
 *
 * A batch is not atomic across rows: two concurrent claims share the rows between them. But on each row the operations
 * of a race take effect one after the other. Therefore every row is judged alone: there must be an order of the operations
 * on it that is legal at every step and ends in the row as it is now. Rows that no operation reports to have changed must
 * be exactly as before.
 */
import { differences, type Image } from './image.ts'
import type { Report } from './perform.ts'
import { changes, follow, isClaimable, isSuspect, type ModelRow, type RowEvent, touches } from './row.ts'
import { type ModelTable, rulesOf } from './tables.ts'

export type Model = ReadonlyMap<string, ModelRow>

export interface Happened {
  readonly model: Model
  readonly before: Image
  /** The number of concurrent operations. */
  readonly operations: number
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
  const why =
    judgeKeys(table, happened, next) ??
    reports.map((report) => judgeChoice(table, happened, report)).find((found) => found !== undefined)
  return why === undefined ? { legal: true, model: next } : { legal: false, why }
}

/** Returns the new state of the model, or why the row is not possible. */
function judgeRow(
  table: ModelTable,
  { model, before, operations, reports, after }: Happened,
  id: string,
): ModelRow | string {
  const start = model.get(id)
  const events = reports.flatMap(({ events }) => events.get(id) ?? [])
  const image = after.rows.get(id)
  if (image === undefined) return 'it is lost: the table no longer has it'
  if (!events.some(changes) && image.text !== before.rows.get(id)?.text) {
    return `no operation reports to have changed it, but it was ${before.rows.get(id)?.text} and is ${image.text}`
  }

  const { lease } = table.declaration
  const objections = new Set<string>()
  for (const order of orders(events)) {
    let row = start
    let why: string | undefined
    for (const event of order) {
      const context = {
        rules: rulesOf(table),
        tokenColumn: lease.token !== undefined,
        start,
        contended: operations > 1,
        startedAt: before.now,
      }
      const step = follow(row, event, context)
      if (!step.legal) {
        why = step.why
        break
      }
      row = step.row
    }
    if (why === undefined && row === undefined) why = 'it exists, but no operation inserted it'
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

/**
 * Rows of an ordering key: never two in flight, and none is claimed while an earlier one is unfinished. A row that was
 * committed, replayed or finished in the same race may count as either.
 */
function judgeKeys(table: ModelTable, { model, after, reports }: Happened, next: Model): string | undefined {
  if (table.declaration.ordering === undefined) return undefined
  for (const rows of byKey(table, next, after).values()) {
    const inFlight = rows.filter(({ lease }) => lease !== undefined)
    if (inFlight.length > 1) return `two rows of a key in flight: ${inFlight.map(({ id }) => id).join(', ')}`
    for (const { id } of rows.filter(({ id }) => wasClaimed(reports, id))) {
      const earlier = rows.find(
        (row) =>
          BigInt(row.id) < BigInt(id) &&
          model.get(row.id)?.state === 'open' &&
          !mayHaveFinished(reports, row.id),
      )
      if (earlier !== undefined) return `row ${id} was claimed, but ${earlier.id} of its key is before it`
    }
  }
  return undefined
}

function wasClaimed(reports: readonly Report[], id: string): boolean {
  return reports.some(({ events }) => events.get(id)?.type === 'claimed')
}

function mayHaveFinished(reports: readonly Report[], id: string): boolean {
  return reports.some(({ events }) => {
    const event = events.get(id)
    if (event?.type === 'reaped') return true
    return event?.type === 'ended' && changes(event) && (event.ending === 'done' || event.ending === 'dead')
  })
}

/** The rows that have a key, by group and key, in the order of their ids. */
function byKey(table: ModelTable, model: Model, image: Image): Map<string, ModelRow[]> {
  const { ordering, groups } = table.declaration
  const keys = new Map<string, ModelRow[]>()
  for (const row of [...model.values()].toSorted((a, b) => Number(BigInt(a.id) - BigInt(b.id)))) {
    const columns = image.rows.get(row.id)?.columns ?? {}
    const key = columns[ordering?.key ?? '']
    if (key === null || key === undefined) continue
    const name = JSON.stringify([columns[groups ?? ''], key])
    keys.set(name, [...(keys.get(name) ?? []), row])
  }
  return keys
}

/** Whether a claim or a reap took the rows that it had to take. */
function judgeChoice(table: ModelTable, happened: Happened, report: Report): string | undefined {
  const { operation, events, exhaustive } = report
  const { model, before, operations, reports } = happened
  const taken = [...events.keys()]
  if (operation.verb === 'settleAndClaim') {
    const claimed = [...events.values()].filter(({ type }) => type === 'claimed').length
    return claimed > operation.limit
      ? `${operation.verb} took ${claimed} rows of ${operation.limit}`
      : undefined
  }
  if (operation.verb !== 'claim' && operation.verb !== 'reap') return undefined
  if (taken.length > operation.limit)
    return `${operation.verb} took ${taken.length} rows of ${operation.limit}`
  const isOrdered = table.declaration.ordering !== undefined
  const eligible = operation.verb === 'claim' ? claimableRows(table, happened) : expiredRows(happened)
  const suspects = taken.filter((id) => isSuspectAt(model, id))
  if (operation.verb === 'claim' && suspects.length > 1) return `claimed two suspects: ${suspects.join(', ')}`

  const missing = eligible.filter(
    (id) =>
      !reports.some(({ events: others }) => isTouched(others.get(id))) &&
      !(operation.verb === 'claim' && suspects.length > 0 && isSuspectAt(model, id)),
  )
  // The head of a key can change while other operations commit.
  if (exhaustive && missing.length > 0 && !(isOrdered && operations > 1))
    return `${operation.verb} did not find rows that are there for it: ${missing.join(', ')}`
  if (operation.verb === 'reap' || operations > 1 || isOrdered) return undefined
  const inOrder =
    operation.from === 'start' ? eligible.slice(0, taken.length) : eligible.filter((id) => events.has(id))
  return inOrder.join() === taken.join() || before.rows.size === 0
    ? undefined
    : `claimed ${taken.join()} instead of ${inOrder.join()}, out of order`
}

function isSuspectAt(model: Model, id: string): boolean {
  const row = model.get(id)
  return row !== undefined && isSuspect(row)
}

/** In the order of the claim. Of an ordering key only the head, and only while none of it is in flight. */
function claimableRows(table: ModelTable, { model, before }: Happened): string[] {
  const keys = table.declaration.ordering === undefined ? new Map() : byKey(table, model, before)
  const keyed = [...keys.values()] as ModelRow[][]
  const notHeads = new Set(
    keyed.flatMap((rows) => {
      const unfinished = rows.filter(({ state }) => state === 'open')
      const [head] = unfinished
      const isFree = unfinished.every((row) => row === head || row.lease === undefined)
      return (isFree ? unfinished.slice(1) : unfinished).map(({ id }) => id)
    }),
  )
  return [...before.rows.keys()].filter((id) => {
    const row = model.get(id)
    return row !== undefined && isClaimable(row) && !notHeads.has(id)
  })
}

function expiredRows({ model, before }: Happened): string[] {
  return [...before.rows.keys()].filter((id) => model.get(id)?.lease?.alive === false)
}

function isTouched(event: RowEvent | undefined): boolean {
  return event !== undefined && touches(event)
}

function orders<T>(items: readonly T[]): T[][] {
  if (items.length === 0) return [[]]
  return items.flatMap((first, i) => orders(items.toSpliced(i, 1)).map((rest) => [first, ...rest]))
}
