/** Reconcilers and the lease tables of the user. */
import { beforeAll, beforeEach, expect, it } from 'vitest'
import { leaseTable } from '../../src/lease/index.ts'
import { reconciler } from '../../src/reconcile/index.ts'
import { useDashboard } from '../support/browser.ts'
import { payments } from '../support/lease-tables.ts'
import { useRuntimes } from '../support/runtimes.ts'

const hidden = leaseTable({ table: 'private.jobs', claimable: 'true', outcomes: {} })
const { db, databaseUrl, open } = useDashboard({ tables: [payments.table, hidden] })
const start = useRuntimes(databaseUrl)

beforeAll(async () => {
  await db.query({
    text: `${payments.ddl}; create schema private; create table private.jobs (id int primary key, lease_owner text,
  lease_until timestamptz, lease_token bigint, attempts int, expiries int, last_error text);
grant usage on schema public to leasehold_reader, leasehold_operator;
grant select on public.payments to leasehold_reader, leasehold_operator`,
  })
})

beforeEach(async () => {
  await db.query({ text: 'truncate public.payments, leasehold.workers, leasehold.settings' })
})

interface Payment {
  readonly id: string
  readonly status: string
}

async function addPayments(count: number): Promise<string[]> {
  const { rows } = await db.query<{ k1: string }>({ text: payments.insert, values: [count] })
  return rows.map(({ k1 }) => k1)
}

/** Payments are detected; every other observation fails. */
async function startReconciler() {
  let observed = 0
  const declared = reconciler<Payment, 'pending' | 'detected' | 'confirmed'>({
    name: 'payments',
    table: payments.table,
    transitions: { pending: ['detected'], detected: ['confirmed'], confirmed: [] },
    observe: async ({ status }) => {
      observed += 1
      if (observed % 2 === 0) throw new Error('the chain <i>does not answer</i>')
      return Promise.resolve(status === 'pending' ? 'detected' : undefined)
    },
    everyMs: 50,
    settings: { pollMs: 50 },
  })
  return start([declared])
}

it('shows how a reconciler is declared while there is none, and then what it does, with its transitions and errors', async () => {
  const page = await open('/reconcile')
  await page.getByText('No reconciler was started yet.').waitFor()
  await page.getByText("import { reconciler } from 'leasehold/reconcile'").waitFor()
  await addPayments(3)
  const { runtime } = await startReconciler()
  const panel = page.getByRole('region', { name: 'payments' })
  await panel.getByRole('link', { name: runtime.id }).waitFor()
  await panel.locator('.facts > div', { hasText: 'pending → detected' }).getByText('3').waitFor()
  await panel.getByText('the chain <i>does not answer</i>').waitFor()
  await panel.locator('.figure.bad', { hasText: 'Errors' }).waitFor()
})

it('pauses and resumes a reconciler', async () => {
  await addPayments(1)
  const { events } = await startReconciler()
  const page = await open('/reconcile', { as: 'operate' })
  const panel = page.getByRole('region', { name: 'payments' })
  const paused = events.next('paused', ({ reason }) => reason === 'operator')
  await panel.getByRole('button', { name: 'Pause' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Pause' }).click()
  await paused
  await panel.locator('header .state', { hasText: 'paused' }).waitFor()
  const resumed = events.next('resumed', ({ reason }) => reason === 'operator')
  await panel.getByRole('button', { name: 'Resume' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Resume' }).click()
  await resumed
  await panel.getByRole('link', { name: 'Settings' }).click()
  await page.waitForURL((url) => url.searchParams.get('worker') === 'payments')
})

it('lists the tables with their backlog and who serves them, and explains a row of them', async () => {
  const [id = ''] = await addPayments(4)
  const page = await open('/reconcile', { as: 'read' })
  const row = page.locator('tr[data-id="public.payments"]')
  await row.locator('td[data-label="Waiting"]', { hasText: '4' }).waitFor()
  await row.locator('td[data-label="Processed by"]', { hasText: 'nobody' }).waitFor()
  await page.locator('tr[data-id="private.jobs"]', { hasText: 'GRANT SELECT ON' }).waitFor()
  await page.getByLabel('Table').selectOption('public.payments')
  await page.getByLabel('Id of the row').fill(id)
  await page.getByRole('button', { name: 'Explain' }).click()
  await page.locator('[data-code="noWorker"]').waitFor()
  expect(new URL(page.url()).searchParams.get('row')).toBe(id)
  expect(await page.getByRole('button', { name: 'Pause', exact: true }).count()).toBe(0)
})
