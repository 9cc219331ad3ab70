/** What follows from a transition: an event in the outbox, a webhook to those who want it. */
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useRuntimes } from '../../test/support/runtimes.ts'
import { forgetWebhooks, makeEndpoint, writtenDeliveries } from '../../test/support/webhook-endpoints.ts'
import { leaseTable } from '../lease/declaration.ts'
import { createOutbox } from '../outbox/index.ts'
import { openDatabase } from '../postgres/database.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { createWebhooks } from '../webhooks/index.ts'
import { type Applied, reconciler } from './reconciler.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const start = useRuntimes(url)
const outbox = createOutbox<{ 'payment.confirmed': { payment: string } }>()
const webhooks = createWebhooks<{ 'payment.confirmed': { payment: string } }>()

interface Payment {
  readonly id: string
  readonly tenant: string
}

const payments = leaseTable({
  table: 'public.payments',
  id: 'id',
  lease: { owner: 'owner', until: 'until', token: 'token' },
  claimable: "status = 'pending'",
  order: ['id'],
  onExpiry: 'claimable',
})

beforeAll(async () =>
  db.query({
    text: `create table public.payments (id bigint primary key, tenant text not null default 'acme',
        status text not null default 'pending', owner text, until timestamptz, token bigint);
      create index on public.payments (status, until, id)`,
  }),
)
beforeEach(async () => {
  await forgetWebhooks(db)
  await db.query({
    text: `truncate public.payments, leasehold.outbox restart identity;
      insert into public.payments (id) values (1), (2), (3)`,
  })
  await makeEndpoint(db, { tenant: 'acme', eventTypes: ['payment.*'] })
})
afterAll(async () => db.close())

/** Both, in the transaction of the transition. */
async function tell(tx: Queryable, { row }: Applied<Payment>): Promise<void> {
  const event = { type: 'payment.confirmed', payload: { payment: row.id }, orderingKey: row.id } as const
  await outbox.enqueue(tx, event)
  await webhooks.send(tx, { ...event, tenant: row.tenant })
}

/** Confirms whatever it sees. Of the rows that `changed` names, somebody else changes the status meanwhile. */
function confirming(onApplied: typeof tell, { changed = [] }: { readonly changed?: readonly string[] } = {}) {
  return reconciler({
    table: payments,
    transitions: { pending: ['confirmed'], confirmed: [], refunded: [] },
    everyMs: 20,
    settings: { pollMs: 50 },
    observe: async ({ id }: Payment) => {
      if (changed.includes(id))
        await db.query({ text: "update public.payments set status = 'refunded' where id = $1", values: [id] })
      return 'confirmed'
    },
    onApplied,
  })
}

async function statuses(): Promise<unknown> {
  const text = 'select array_agg(status order by id) as statuses from public.payments'
  return (await db.query<{ statuses: string[] }>({ text })).rows[0]?.statuses
}

/** What was written, by the ids of the payments. */
async function told(): Promise<{ events: string[]; deliveries: string[] }> {
  const { rows } = await db.query<{ key: string }>({
    text: 'select ordering_key as key from leasehold.outbox order by ordering_key',
  })
  const deliveries = (await writtenDeliveries(db)).map(
    ({ body }) => /"payment": ?"(\d+)"/.exec(body)?.[1] ?? body,
  )
  return { events: rows.map(({ key }) => key), deliveries: deliveries.toSorted() }
}

it('REC-04: an event and a webhook are written with the transition, and not for a row that was skipped', async () => {
  const { events } = await start([confirming(tell, { changed: ['2'] })])
  const ended = new Map<string, string>()
  await events.next('settled', ({ outcome, ids }) => {
    for (const id of ids) ended.set(id, outcome)
    return ended.size === 3
  })
  expect(Object.fromEntries(ended)).toEqual({
    '1': 'pending->confirmed',
    '2': 'skipped',
    '3': 'pending->confirmed',
  })
  expect(await statuses()).toEqual(['confirmed', 'refunded', 'confirmed'])
  expect(await told()).toEqual({ events: ['1', '3'], deliveries: ['1', '3'] })
})

it('a failure after the event was written rolls back the event, the webhook and the transition', async () => {
  let failures = 0
  const { events } = await start([
    confirming(async (tx, applied) => {
      await tell(tx, applied)
      if (applied.row.id !== '2') return
      failures += 1
      if (failures === 1) throw new Error('the ledger is shut')
    }),
  ])
  const failed = events.next('failed')
  const ended = new Set<string>()
  const all = events.next('settled', ({ outcome, ids }) => {
    if (outcome === 'pending->confirmed') for (const id of ids) ended.add(id)
    return ended.size === 3
  })
  expect(await failed).toMatchObject({ id: '2', error: 'Error: the ledger is shut' })
  await all
  expect(failures).toBe(2)
  expect(await told()).toEqual({ events: ['1', '2', '3'], deliveries: ['1', '2', '3'] })
})

it('REC-04: a reconciler that has lost its lease writes neither the transition nor its effects', async () => {
  const { events } = await start([
    reconciler({
      table: payments,
      transitions: { pending: ['confirmed'], confirmed: [] },
      settings: { pollMs: 3_600_000 },
      observe: async ({ id }: Payment) => {
        if (id === '2')
          await db.query({
            text: "update public.payments set owner = 'another', token = token + 1 where id = 2",
          })
        return 'confirmed'
      },
      onApplied: tell,
    }),
  ])
  let settled = 0
  const others = events.next('settled', ({ ids }) => (settled += ids.length) === 2)
  expect((await events.next('fencedOff')).id).toBe('2')
  await others
  expect(await statuses()).toEqual(['confirmed', 'pending', 'confirmed'])
  expect(await told()).toEqual({ events: ['1', '3'], deliveries: ['1', '3'] })
})
