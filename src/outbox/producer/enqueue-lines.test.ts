import { randomUUID } from 'node:crypto'
import { afterAll, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { openLeaseStore } from '../../lease/index.ts'
import { openDatabase } from '../../postgres/database.ts'
import type { NewEvent } from '../event.ts'
import { enqueue } from './outbox.ts'
import { type OutboxRow, outboxTable } from '../table.ts'

useQuietProcess()
const { url } = useDatabase()
const db = openDatabase({ url })
afterAll(async () => db.close())

const PRODUCERS = 4
const CALLS = 25
const EVENTS = 12
const KEYS = 3

function keyOf(producer: number, call: number, i: number): string {
  return `${producer} ${call} ${i % KEYS}`
}

/**
 * The events of one call, in lines of its own: nobody comes later and takes along what was stranded. One of them, at any
 * place, is written by the other producers as well, in lines of theirs.
 */
function someEvents(sharedId: string | undefined, producer: number, call: number): NewEvent[] {
  const shared = (producer * 5 + call) % EVENTS
  return Array.from({ length: EVENTS }, (_, i) => ({
    type: 'step',
    payload: i,
    orderingKey: keyOf(producer, call, i),
    eventId: i === shared ? sharedId : undefined,
  }))
}

/** Writes one call after the other, and returns the ids that each wrote, by key. */
async function produce(sharedIds: readonly string[], producer: number): Promise<string[][]> {
  const lines: string[][] = []
  for (let call = 0; call < CALLS; call++) {
    const events = someEvents(sharedIds[call], producer, call)
    const enqueued = await enqueue(db, events)
    for (let key = 0; key < KEYS; key++) {
      const own = enqueued.filter(
        (one, i) => one.written && events[i]?.orderingKey === keyOf(producer, call, key),
      )
      lines.push(own.map(({ id }) => id))
    }
  }
  return lines
}

it('LIFE-13, LIFE-18: whatever several producers write at once, a part of it all of them, is published once and in line', async () => {
  const sharedIds = Array.from({ length: CALLS }, () => randomUUID())
  const store = await openLeaseStore<OutboxRow, 'done' | 'retry' | 'dead'>(db, outboxTable(), {
    owner: 'relay',
  })
  const published: string[] = []
  const publish = async (): Promise<number> => {
    const { claimed } = await store.claim({ limit: 50, leaseMs: 60_000 })
    published.push(...claimed.map(({ row }) => row.id))
    const leases = claimed.map(({ lease }) => lease)
    await store.settle('done', leases)
    return claimed.length
  }

  const producing = { over: false }
  const produced = Promise.all(
    Array.from({ length: PRODUCERS }, async (_, producer) => produce(sharedIds, producer)),
  ).finally(() => {
    producing.over = true
  })
  while (!producing.over) await publish()
  const lines = (await produced).flat()
  for (let more = 1; more > 0;) more = await publish()

  expect(published).toHaveLength(PRODUCERS * CALLS * EVENTS - (PRODUCERS - 1) * CALLS)
  expect(new Set(published).size).toBe(published.length)
  const place = new Map(published.map((id, i) => [id, i]))
  for (const line of lines) {
    const places = line.map((id) => place.get(id) ?? Number.NaN)
    expect(places).toEqual(places.toSorted((a, b) => a - b))
  }
})
