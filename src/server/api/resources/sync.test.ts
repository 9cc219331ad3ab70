import { expect, it } from 'vitest'
import { useApi } from '../../../../test/support/api.ts'
import {
  clientAddress,
  type RouteCase,
  testAllHaveCases,
  testRoute,
} from '../../../../test/support/route-cases.ts'
import { SYNC } from './sync.ts'

const api = useApi({ clientAddress })
const { db, send } = api
const REASON = { reason: 'test' }
let matrices = 0

type Phase = 'waiting' | 'syncing' | 'completed' | 'failed'

const COLUMNS: Readonly<Record<Phase, string>> = {
  waiting: 'error_message = null',
  syncing: 'planned_at = now()',
  completed: 'planned_at = now(), completed_at = now()',
  failed: `planned_at = now(), failed_at = now(), error_message = 'HTTP 503'`,
}

/** A job with three chunks: one is completed, one has failed, and one is open. */
async function job(phase: Phase): Promise<{ readonly id: string; readonly matrixId: string }> {
  const matrixId = `matrix ${(matrices += 1)}`
  const { rows } = await db.query<{ id: string }>({
    text: `insert into leasehold.sync_jobs (definition, matrix_id) values ('tempo', $1) returning id::text as id`,
    values: [matrixId],
  })
  const id = rows[0]?.id ?? ''
  await db.query({
    text: `with chunks as (
  insert into leasehold.sync_checkpoints (matrix_id, chunk_hash, definition, chunk_query, position, needed, completed_at,
    last_synced_at, row_count, failed_at, error_message)
  values ($1, 'h1', 'tempo', '{"year":1}', 1, true, now(), now(), 5, null, null),
    ($1, 'h2', 'tempo', '{"year":2}', 2, true, null, null, null, now(), 'HTTP 503'),
    ($1, 'h3', 'tempo', '{"year":3}', 3, true, null, null, null, null, null)
  returning matrix_id, chunk_hash
)
insert into leasehold.sync_job_chunks (job_id, matrix_id, chunk_hash) select $2, matrix_id, chunk_hash from chunks`,
    values: [matrixId, id],
  })
  await db.query({ text: `update leasehold.sync_jobs set ${COLUMNS[phase]} where id = $1`, values: [id] })
  return { id, matrixId }
}

async function everything(): Promise<unknown> {
  const { rows } = await db.query({
    text: `select (select jsonb_agg(to_jsonb(j) order by j.id) from leasehold.sync_jobs as j) as jobs,
  (select jsonb_agg(to_jsonb(c) order by c.matrix_id, c.chunk_hash) from leasehold.sync_checkpoints as c) as chunks,
  (select count(*) from leasehold.audit) as audit`,
  })
  return rows
}

const queries =
  (path: () => Promise<string>, wrong: readonly (readonly [query: string, field: string])[]) => async () =>
    Promise.all(wrong.map(async ([query, field]) => ({ path: `${await path()}?${query}`, field })))

const BAD_PAGES = [
  ['limit=1001', 'query.limit'],
  ['cursor=%00', 'query.cursor'],
  ['unknown=1', 'query'],
  ['states=LOST', 'query.states'],
] as const

const CASES: readonly RouteCase[] = [
  {
    route: 'GET /sync/jobs',
    async happy() {
      const { id, matrixId } = await job('failed')
      return {
        path: `/sync/jobs?definition=tempo&matrixId=${encodeURIComponent(matrixId)}&states=FAILED&states=RUNNING&error=503&failedSince=2020-01-01T00:00:00Z&id=${id}`,
        answer: {
          items: [{ id, state: 'FAILED', phase: 'failed', chunks: { total: 3, done: 1, failed: 1 } }],
          next: null,
        },
      }
    },
    invalid: queries(
      async () => '/sync/jobs',
      [...BAD_PAGES, ['id=x', 'query.id'], ['to=now', 'query.to'], ['definition=', 'query.definition']],
    ),
  },
  {
    route: 'POST /sync/jobs',
    happy: async () => ({
      path: '/sync/jobs',
      body: {
        definition: 'tempo',
        matrixId: `matrix ${(matrices += 1)}`,
        params: { year: 2024 },
        priority: 5,
        force: true,
        freshForMs: 1_000,
      },
      answer: { created: true },
      async afterwards({ body }) {
        expect((await send('GET', `/sync/jobs/${body.jobId}`)).body).toMatchObject({
          params: { year: 2024 },
          priority: 5,
          force: true,
          freshForMs: 1_000,
          parallel: false,
          phase: 'waiting',
        })
      },
    }),
    invalid: async () => [
      { body: { matrixId: 'm' }, field: 'body.definition' },
      { body: { definition: 'd' }, field: 'body.matrixId' },
      { body: { definition: 'd', matrixId: 'm', priority: 2 ** 31 }, field: 'body.priority' },
      { body: { definition: 'd', matrixId: 'm', freshForMs: 1e15 }, field: 'freshForMs' },
      { body: { definition: 'd', matrixId: 'm'.repeat(1_001) }, field: 'matrixId' },
      { body: { definition: 'd'.repeat(101), matrixId: 'm' }, field: 'definition' },
      { body: { definition: 'd', matrixId: 'm', params: 'x'.repeat(300_000) }, field: 'params' },
      { body: { definition: 'd', matrixId: 'm', completedAt: '2020-01-01T00:00:00Z' }, field: 'body' },
    ],
  },
  {
    route: 'GET /sync/jobs/{id}',
    async happy() {
      const { id, matrixId } = await job('syncing')
      return {
        path: `/sync/jobs/${id}`,
        answer: {
          id,
          matrixId,
          phase: 'syncing',
          chunks: { total: 3, done: 1, failed: 1, waiting: 1 },
          rows: 5,
          failures: [{ hash: 'h2', errorMessage: 'HTTP 503' }],
        },
      }
    },
    invalid: async () => [
      { path: '/sync/jobs/x', field: 'path.id' },
      { path: '/sync/jobs/9999999999999999999', field: 'jobId' },
    ],
    missing: '/sync/jobs/999999',
  },
  {
    route: 'GET /sync/jobs/{id}/chunks',
    async happy() {
      const { id } = await job('syncing')
      return {
        path: `/sync/jobs/${id}/chunks?limit=1&states=FAILED&states=AVAILABLE`,
        answer: { items: [{ hash: 'h2', state: 'FAILED', query: { year: 2 } }], next: expect.any(String) },
        async afterwards({ body }) {
          const next = await send(
            'GET',
            `/sync/jobs/${id}/chunks?states=FAILED&states=AVAILABLE&cursor=${body.next}`,
          )
          expect(next.body).toMatchObject({ items: [{ hash: 'h3', state: 'AVAILABLE' }], next: null })
        },
      }
    },
    invalid: queries(async () => `/sync/jobs/${(await job('waiting')).id}/chunks`, BAD_PAGES),
    missing: '/sync/jobs/999999/chunks',
  },
  {
    route: 'POST /sync/jobs/{id}/cancel',
    happy: async () => ({
      path: `/sync/jobs/${(await job('syncing')).id}/cancel`,
      body: REASON,
      answer: { phase: 'failed', errorMessage: 'cancelled by operate: test', chunks: { dropped: 1 } },
    }),
    invalid: async () => [
      { body: {}, field: 'body.reason' },
      { path: '/sync/jobs/first/cancel', field: 'path.id' },
    ],
    missing: '/sync/jobs/999999/cancel',
    conflict: async () => ({
      path: `/sync/jobs/${(await job('completed')).id}/cancel`,
      body: REASON,
      detail: 'it has completed already',
    }),
  },
  {
    route: 'POST /sync/jobs/{id}/replay',
    happy: async () => ({
      path: `/sync/jobs/${(await job('failed')).id}/replay`,
      body: REASON,
      answer: { phase: 'syncing', failedAt: null, chunks: { done: 1, failed: 0, waiting: 2 } },
    }),
    invalid: async () => [{ body: { reason: 5 }, field: 'body.reason' }],
    missing: '/sync/jobs/999999/replay',
    conflict: async () => ({
      path: `/sync/jobs/${(await job('syncing')).id}/replay`,
      body: REASON,
      detail: 'has not failed',
    }),
  },
  {
    route: 'POST /sync/jobs/changes/preview',
    happy: async () => ({
      path: '/sync/jobs/changes/preview',
      body: { action: 'cancel', ids: [(await job('syncing')).id, (await job('completed')).id] },
      answer: {
        matched: 1,
        counts: { droppedChunks: 1 },
        skipped: [{ why: expect.stringContaining('completed') }],
      },
    }),
    invalid: async () => [
      { body: { action: 'retry', ids: ['1'] }, field: 'body.action' },
      { body: { action: 'cancel', filter: { states: ['FAILED'] } }, field: 'states' },
      { body: { action: 'replay', filter: { states: [] } }, field: 'body.filter.states' },
      { body: { action: 'replay', ids: ['0190b3a0-0000-7000-8000-00000000000a'] }, field: 'id' },
    ],
  },
  {
    route: 'POST /sync/jobs/changes',
    async happy() {
      const { id, matrixId } = await job('failed')
      return {
        path: '/sync/jobs/changes',
        body: { action: 'replay', filter: { matrixId }, ...REASON },
        answer: { action: 'sync.replay', filter: { matrixId }, isBackground: true },
        async afterwards({ body }) {
          await expect
            .poll(async () => (await send('GET', `/changes/${body.id}`)).body, { timeout: 30_000 })
            .toMatchObject({ state: 'finished', changed: 1, counts: { failedChunks: 1 } })
          expect((await send('GET', `/sync/jobs/${id}`)).body.phase).toBe('syncing')
        },
      }
    },
    invalid: async () => [{ body: { action: 'cancel', ids: ['1'] }, field: 'body.reason' }],
  },
]

for (const each of CASES) testRoute(api, each, everything)
testAllHaveCases(SYNC, CASES)

it('a job of a matrix that has an open one is not written; the answer names the open one', async () => {
  const { id, matrixId } = await job('syncing')
  const sent = { key: 'operate', body: { definition: 'tempo', matrixId } } as const
  expect(await send('POST', '/sync/jobs', sent)).toMatchObject({
    status: 201,
    body: { jobId: id, created: false },
  })
  const parallel = await send('POST', '/sync/jobs', {
    key: 'operate',
    body: { definition: 'tempo', matrixId, parallel: true },
  })
  expect(parallel.body).toMatchObject({ created: true })
  expect(parallel.body.jobId).not.toBe(id)
})
