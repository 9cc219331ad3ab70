/** Lists and the health of an endpoint or a tenant read the rows of these endpoints only, whatever the size of the table and its statistics. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import {
  forgetStatistics,
  nodesOf,
  OWN_TABLES,
  type PlanNode,
} from '../../../test/support/statement-plans.ts'
import { type Database, openDatabase } from '../../postgres/database.ts'
import type { Queryable, Statement } from '../../postgres/queryable.ts'
import { listDeliveries } from './browse.ts'
import { readHealthOfEndpoints } from './endpoint-health.ts'
import { summariseEndpoints } from './endpoint-summary.ts'
import type { DeliveryFilter } from './filter.ts'

const { url } = useDatabase()
const db = openDatabase({ url, queryTimeoutMs: 300_000 })
afterAll(async () => db.close())

const TARGET = 'leasehold.webhook_outbox'
const OWN = ['webhook_outbox_endpoint', 'webhook_outbox_failed_of_endpoint']
const endpointId = (n: number): string => `00000000-0000-7000-8000-${String(n).padStart(12, '0')}`

/** As a key of the tenant. */
const AS_TENANT = "set local role leasehold_tenant; set local leasehold.tenant = 'acme'"

/** A tenant with so many endpoints, of which most have been quiet. */
const MANY = 600
const AS_MANY = "set local role leasehold_tenant; set local leasehold.tenant = 'initech'"

/** The scans of deliveries in all statements that are sent. */
async function scansOf(read: (db: Database) => Promise<unknown>, enter = 'select'): Promise<PlanNode[]> {
  const scans: PlanNode[] = []
  const explaining = (tx: Queryable): Queryable => ({
    async query<Row extends object>(statement: Statement) {
      if (statement.text.includes('webhook_outbox')) {
        const { rows } = await tx.query<{ 'QUERY PLAN': [{ Plan: PlanNode }] }>({
          text: `explain (analyze, format json) ${statement.text}`,
          values: statement.values ?? [],
        })
        const nodes = nodesOf(rows[0]?.['QUERY PLAN'][0].Plan ?? { 'Node Type': 'no plan' })
        scans.push(...nodes.filter((node) => node['Relation Name'] === 'webhook_outbox'))
      }
      return tx.query<Row>(statement)
    },
  })
  const watched: Database = {
    ...db,
    transaction: async (work, options) =>
      db.transaction(async (tx) => {
        await tx.query({ text: enter })
        return work(explaining(tx))
      }, options),
  }
  await read(watched)
  return scans
}

beforeAll(async () => {
  await db.query({
    text: `alter table ${TARGET} set (autovacuum_enabled = off);
insert into leasehold.webhook_endpoints (id, tenant, url, secret)
select ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, case when n < 3 then 'acme' else 'globex' end, 'https://example.com', 'none'
from generate_series(0, 49) as n;
insert into leasehold.webhook_endpoints (id, tenant, url, secret)
select ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, 'initech', 'https://example.com', 'none'
from generate_series(1000, ${999 + MANY}) as n`,
  })
})

describe.each([
  { rows: 0, statistics: false },
  { rows: 1_000, statistics: false },
  { rows: 1_000, statistics: true },
  { rows: 100_000, statistics: false },
  { rows: 100_000, statistics: true },
])('with $rows rows, statistics: $statistics', ({ rows, statistics }) => {
  beforeAll(async () => {
    await db.query({ text: `truncate ${TARGET} restart identity cascade` })
    const fill = OWN_TABLES.find(({ table }) => table.name === 'webhook_outbox')?.fill
    if (rows > 0) await db.query({ text: fill?.(rows) ?? '' })
    // Most deliveries were of one endpoint, which has been quiet since: the newest rows are of others.
    await db.query({
      text: `update ${TARGET} set endpoint_id = '${endpointId(1)}' where id <= ${rows} * 0.6;
        update ${TARGET} set endpoint_id = '${endpointId(7)}' where id > ${rows} * 0.6 and endpoint_id = '${endpointId(1)}' and ordering_key is null`,
    })
    // A tenant has many endpoints, whose deliveries are old.
    await db.query({
      text: `update ${TARGET} set endpoint_id = ('00000000-0000-7000-8000-' || lpad((1000 + id % ${MANY})::text, 12, '0'))::uuid
        where id <= ${rows} * 0.1 and ordering_key is null`,
    })
    await forgetStatistics(db, TARGET)
    if (statistics) await db.query({ text: `analyze ${TARGET}` })
  })

  it.each<[string, DeliveryFilter, string | undefined]>([
    ['an endpoint', { endpoint: endpointId(2) }, undefined],
    ['an endpoint that has been quiet', { endpoint: endpointId(1) }, undefined],
    ['the failed deliveries of an endpoint', { endpoint: endpointId(2), status: 'failed' }, undefined],
    ['a type of an endpoint', { endpoint: endpointId(2), type: 'nothing' }, undefined],
    ['a tenant', { tenant: 'acme' }, undefined],
    ['a tenant, for its own key', { tenant: 'acme' }, AS_TENANT],
    ['the failed deliveries of a tenant, for its own key', { tenant: 'acme', status: 'failed' }, AS_TENANT],
    ['a tenant with many endpoints', { tenant: 'initech' }, undefined],
    ['a tenant with many endpoints, for its own key', { tenant: 'initech' }, AS_MANY],
    ['a type of a tenant with many endpoints, for its own key', { tenant: 'initech', type: 'none' }, AS_MANY],
    ['an endpoint of a tenant, for its own key', { tenant: 'acme', endpoint: endpointId(2) }, AS_TENANT],
  ])('the list of %s reads along the index of endpoints', async (_name, filter, enter) => {
    const page = { limit: 20, maxScanned: 100_000 }
    const scans = await scansOf(async (watched) => listDeliveries(watched, filter, page), enter)
    expect(scans.length).toBeGreaterThan(0)
    for (const scan of scans) expectAlongEndpoints(scan)
  })

  it('a page of a tenant with many endpoints reads the newest delivery of each, and little more', async () => {
    const list = async (watched: Database): Promise<unknown> =>
      listDeliveries(watched, { tenant: 'initech' }, { limit: 20, maxScanned: 100_000 })
    const scans = await scansOf(list, AS_MANY)
    const read = scans.reduce((sum, scan) => sum + rowsRead(scan), 0)
    expect(read).toBeLessThanOrEqual(MANY + 21 * 21)
  })

  it('a page with more rows than a tenant has endpoints does not read a page of each', async () => {
    const list = async (watched: Database): Promise<unknown> =>
      listDeliveries(watched, { tenant: 'globex' }, { limit: 50, maxScanned: 100_000 })
    const read = (await scansOf(list)).reduce((sum, scan) => sum + rowsRead(scan), 0)
    // A few ids of each of its 47 endpoints, and the page. Of each a page would be 2,397.
    expect(read).toBeLessThanOrEqual(600)
  })

  it.each([
    ['an operator', undefined],
    ['a key of the tenant', AS_TENANT],
  ])('the health of endpoints, for %s, reads along the index of endpoints', async (_name, enter) => {
    const ids = [endpointId(1), endpointId(2)]
    const [first, ...others] = await scansOf(async (watched) => readHealthOfEndpoints(watched, ids), enter)
    expectAlongEndpoints(first)
    // The deliveries that were found are read by their numbers.
    expect(others).not.toEqual([])
    for (const scan of others)
      expect(JSON.stringify(scan), 'condition').toMatch(/"Index Cond":"\(\(.*id = chosen.id/)
  })

  it('the endpoints of a tenant are counted without reading deliveries of others', async () => {
    const scans = await scansOf(async (watched) => summariseEndpoints(watched, { tenant: 'acme' }), AS_TENANT)
    expect(scans.length).toBeGreaterThan(0)
    for (const scan of scans)
      expect(JSON.stringify(scan), 'condition').toMatch(/"Index Cond":"[^"]*endpoint_id = /)
  })
})

function rowsRead(scan: PlanNode): number {
  const figure = (name: string): number => Number(Reflect.get(scan, name) ?? 0)
  return figure('Actual Loops') * (figure('Actual Rows') + figure('Rows Removed by Filter'))
}

function expectAlongEndpoints(scan: PlanNode | undefined): void {
  const indexes = scan === undefined ? [] : nodesOf(scan).flatMap((node) => node['Index Name'] ?? [])
  expect(OWN, JSON.stringify(scan)).toContain(indexes[0])
  // Its condition is the endpoint, and not only the bucket.
  expect(JSON.stringify(scan), 'condition').toMatch(/"Index Cond":"\(\(endpoint_id = ANY/)
}

describe('where two endpoints have all deliveries', () => {
  beforeAll(async () => {
    await db.query({
      text: `update ${TARGET} set endpoint_id = '${endpointId(7)}';
        update ${TARGET} set endpoint_id = '${endpointId(1)}' where id = 1`,
    })
    await db.query({ text: `vacuum analyze ${TARGET}` })
  })

  it.each([
    ['an operator', undefined],
    ['a key of the tenant', AS_TENANT],
  ])('the list of a type, for %s, reads along the index of endpoints', async (_name, enter) => {
    const page = { limit: 20, maxScanned: 100_000 }
    const filter = { tenant: 'acme', type: 'nothing' }
    const scans = await scansOf(async (watched) => listDeliveries(watched, filter, page), enter)
    expect(scans.length).toBeGreaterThan(0)
    for (const scan of scans) expectAlongEndpoints(scan)
  })
})
