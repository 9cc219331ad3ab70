import { leaseTable, type LeaseTableDeclaration } from '../../src/lease/index.ts'
import type { EventOf, Events, EventType, RuntimeOptions, WorkDeclaration } from '../../src/worker/index.ts'
import { type Running, useRuntimes } from './runtimes.ts'
import { WORK_TABLE, type Job } from './work-table.ts'

type Declared = Pick<WorkDeclaration<Job>, 'handle'> &
  Partial<WorkDeclaration<Job>> & {
    /** The retry policy of the table, if the default does not suit the test. */
    readonly retry?: LeaseTableDeclaration['retry']
  }

/** Starts workers of the `jobs` table in this process. They are stopped after each test. */
export function useWorkers(databaseUrl: string) {
  const start = useRuntimes(databaseUrl)
  return async ({ retry, ...declared }: Declared, more?: Partial<RuntimeOptions>): Promise<Running> => {
    const table = leaseTable(retry === undefined ? WORK_TABLE : { ...WORK_TABLE, retry })
    return start([{ name: 'jobs', table, ...declared }], more)
  }
}

/** Collects events of this type until there are enough. */
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

/** Resolves when these rows, or this many rows, have been settled. */
export async function settled(events: Events, rows: number | readonly string[]): Promise<void> {
  const ids = new Set<string>()
  await events.next('settled', (event) => {
    for (const id of event.ids) ids.add(id)
    return typeof rows === 'number' ? ids.size >= rows : rows.every((id) => ids.has(id))
  })
}

/** A promise that the test resolves with `open()`. */
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
