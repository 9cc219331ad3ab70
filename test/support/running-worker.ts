import { leaseTable, type LeaseTableDeclaration } from '../../src/lease/index.ts'
import type { EventOf, Events, EventType, RuntimeOptions, WorkDeclaration } from '../../src/worker/index.ts'
import { type Running, useRuntimes } from './runtimes.ts'
import { WORK_TABLE, type Job } from './work-table.ts'

type Declared = Pick<WorkDeclaration<Job>, 'handle'> &
  Partial<WorkDeclaration<Job>> & {
    /** Of the table, for tests that need another one than the default. */
    readonly retry?: LeaseTableDeclaration['retry']
  }

/** Workers of the `jobs` table in this process. What a test started is stopped after it. */
export function useWorkers(databaseUrl: string) {
  const start = useRuntimes(databaseUrl)
  return async ({ retry, ...declared }: Declared, more?: Partial<RuntimeOptions>): Promise<Running> => {
    const table = leaseTable(retry === undefined ? WORK_TABLE : { ...WORK_TABLE, retry })
    return start([{ name: 'jobs', table, ...declared }], more)
  }
}

/** All events of this type from now on, as soon as they are enough. */
export async function collect<Type extends EventType>(
  events: Events,
  type: Type,
  enough: (all: readonly EventOf<Type>[]) => boolean,
): Promise<readonly EventOf<Type>[]> {
  const all: EventOf<Type>[] = []
  await events.next(type, (event) => {
    all.push(event)
    return enough(all)
  })
  return all
}

/** Resolves when these rows have been settled, or so many. */
export async function settled(events: Events, rows: number | readonly string[]): Promise<void> {
  const ids = new Set<string>()
  await events.next('settled', (event) => {
    for (const id of event.ids) ids.add(id)
    return typeof rows === 'number' ? ids.size >= rows : rows.every((id) => ids.has(id))
  })
}

/** A promise that the test resolves. */
export function door(): { readonly opened: Promise<void>; open(): void; isOpen(): boolean } {
  let resolveOpened: () => void = () => undefined
  let isOpen = false
  const opened = new Promise<void>((resolve) => {
    resolveOpened = resolve
  })
  return {
    opened,
    open() {
      isOpen = true
      resolveOpened()
    },
    isOpen: () => isOpen,
  }
}
