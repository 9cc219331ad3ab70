/** SYNC-14: tables named sync_jobs and sync_checkpoints that existed before Leasehold. */
import { randomUUID } from 'node:crypto'
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useRuntimes } from '../../test/support/runtimes.ts'
import { watchJobs } from '../../test/support/sync-rows.ts'
import { openDatabase } from '../postgres/database.ts'
import { migrate } from '../postgres/migrate.ts'
import { Events } from '../worker/index.ts'
import { explainJob } from './admin/explain.ts'
import { listJobs } from './admin/jobs.ts'
import { progress } from './admin/progress.ts'
import { createSync } from './sync.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const start = useRuntimes(url)
const schema = 'importer'

const TABLES = `
  create schema importer;
  create table importer.sync_jobs (
    id serial primary key,
    matrix_id varchar(80) not null,
    status text not null default 'PENDING',
    requested_by text,
    priority int,
    created_at timestamptz,
    completed_at timestamptz,
    failed_at timestamptz,
    error_message text
  );
  create table importer.sync_checkpoints (
    id serial primary key,
    matrix_id varchar(80) not null,
    chunk_hash text not null,
    last_synced_at timestamptz,
    row_count int,
    comment text
  );`

/** As the document has it. */
const DOCUMENT = `
  ALTER TABLE importer.sync_checkpoints ADD COLUMN locked_until TIMESTAMPTZ, ADD COLUMN locked_by TEXT;
  ALTER TABLE importer.sync_jobs ADD COLUMN locked_until TIMESTAMPTZ, ADD COLUMN locked_by TEXT;`

async function run(text: string): Promise<void> {
  await db.query({ text })
}

beforeEach(async () => {
  await run('drop schema if exists importer cascade')
  await run(TABLES)
})
afterAll(async () => db.close())

/** Syncs the chunks year-1 to year-3 of every matrix, and records which it was called for. */
function yearsSync() {
  const sync = createSync({ schema })
  const synced: string[] = []
  const defined = sync.define<{ year: number }>('default', {
    plan: () => [1, 2, 3].map((year) => ({ year })),
    hash: ({ year }) => `year-${year}`,
    syncChunk: async ({ matrixId, query: { year } }) => {
      synced.push(`${matrixId} ${year}`)
      return Promise.resolve({ rows: year })
    },
  })
  return { sync, defined, synced }
}

describe.each([
  ['without lease columns', ''],
  ['to which the ALTER TABLE of the document was applied', DOCUMENT],
])('SYNC-14: tables that exist already, %s', (_, alter) => {
  it('are migrated in place: their jobs run, what was synced is not fetched again, and no column is lost', async () => {
    if (alter !== '') await run(alter)
    await run(`insert into importer.sync_jobs (matrix_id, status, requested_by, completed_at)
      values ('old', 'DONE', 'ada', now()), ('m', 'RUNNING', 'bob', null), ('m', 'PENDING', 'eve', null)`)
    await run(`insert into importer.sync_checkpoints (matrix_id, chunk_hash, last_synced_at, row_count, comment)
      values ('m', 'year-1', now(), 11, 'the first'), ('m', 'year-2', null, null, 'the second'), ('old', 'year-1', now(), null, null)`)
    await migrate(db, { schema })

    const { sync, defined, synced } = yearsSync()
    const events = new Events()
    const jobs = watchJobs(events)
    await start(sync.runner({ checkEveryMs: 20 }), { schema, events })
    expect(await jobs.ended('2')).toBe('done')
    expect(await jobs.ended('3')).toBe('done')
    expect(synced.toSorted()).toEqual(['m 2', 'm 3'])

    // A program that does not know of Leasehold writes a job as it always did, and another one through enqueue.
    const { rows: inserted } = await db.query<{ id: number }>({
      text: `insert into importer.sync_jobs (matrix_id, requested_by) values ('plain', 'cron') returning id`,
    })
    expect(await jobs.ended(String(inserted[0]?.id))).toBe('done')
    const { jobId } = await defined.enqueue(db, { matrixId: 'queued' })
    expect(await jobs.ended(jobId)).toBe('done')
    expect(synced).toHaveLength(2 + 3 + 3)

    const listed = await db.query({
      text: `select s.state, j.matrix_id, j.requested_by, j.locked_by, j.locked_until
from importer.sync_jobs as j join importer.sync_job_states as s using (id) order by id`,
    })
    expect(listed.rows).toEqual(
      [
        ['old', 'ada'],
        ['m', 'bob'],
        ['m', 'eve'],
        ['plain', 'cron'],
        ['queued', null],
      ].map(([matrix, by]) => ({
        state: 'COMPLETED',
        matrix_id: matrix,
        requested_by: by,
        locked_by: null,
        locked_until: null,
      })),
    )
    const chunks = await db.query({
      text: `select chunk_hash, row_count, comment, last_synced_at is not null as synced
from importer.sync_checkpoints where matrix_id = 'm' order by chunk_hash`,
    })
    expect(chunks.rows).toEqual([
      { chunk_hash: 'year-1', row_count: 11, comment: 'the first', synced: true },
      { chunk_hash: 'year-2', row_count: 2, comment: 'the second', synced: true },
      { chunk_hash: 'year-3', row_count: 3, comment: null, synced: true },
    ])
  })
})

it('SYNC-14: a lease that somebody still holds on an existing row is respected until it expires', async () => {
  await run(DOCUMENT)
  await run(`insert into importer.sync_jobs (matrix_id, locked_by, locked_until)
    values ('held', 'old program', now() + interval '1 hour'), ('dead', 'old program', now() - interval '1 hour')`)
  await migrate(db, { schema })
  const { sync, synced } = yearsSync()
  const events = new Events()
  const jobs = watchJobs(events)
  await start(sync.runner({ checkEveryMs: 20 }), { schema, events })
  expect(await jobs.ended('2')).toBe('done')
  expect(synced.toSorted()).toEqual(['dead 1', 'dead 2', 'dead 3'])
  const { rows } = await db.query({ text: 'select locked_by from importer.sync_jobs where id = 1' })
  expect(rows).toEqual([{ locked_by: 'old program' }])
})

it('SYNC-14: jobs whose id is a uuid run, and their progress and their reasons are told', async () => {
  await run(
    `alter table importer.sync_jobs drop column id, add column id uuid primary key default gen_random_uuid()`,
  )
  await run(`insert into importer.sync_jobs (matrix_id) values ('old')`)
  await migrate(db, { schema })
  const { sync, defined, synced } = yearsSync()
  const events = new Events()
  const jobs = watchJobs(events)
  await start(sync.runner({ checkEveryMs: 20 }), { schema, events })
  const { rows } = await db.query<{ id: string }>({ text: 'select id from importer.sync_jobs' })
  expect(await jobs.ended(rows[0]?.id ?? '')).toBe('done')
  const { jobId } = await defined.enqueue(db, { matrixId: 'queued' })
  expect(await jobs.ended(jobId)).toBe('done')
  expect(synced).toHaveLength(6)
  expect(await progress(db, jobId, { schema })).toMatchObject({
    phase: 'completed',
    chunks: { total: 3, done: 3 },
  })
  expect(await explainJob(db, jobId, { schema })).toBeDefined()
  const missing = { code: 'JOB_NOT_FOUND' }
  await expect(progress(db, randomUUID(), { schema })).rejects.toMatchObject(missing)
  await expect(progress(db, '7', { schema })).rejects.toMatchObject(missing)
  // They are read, and changed, in the order of their numbers.
  await expect(listJobs(db, {}, { schema })).rejects.toMatchObject({
    code: 'SETTING_INVALID',
    message: expect.stringContaining('importer.sync_jobs.id is uuid'),
  })
})

it.each([
  [
    'sync_jobs',
    `(matrix_id, completed_at, failed_at) values ('m', now(), null), ('m', now(), now())`,
    'with the id 2',
  ],
  [
    'sync_checkpoints',
    `(matrix_id, chunk_hash, last_synced_at, failed_at) values ('m', 'a', now(), null), ('m', 'b', now(), now())`,
    'with the matrix_id m and the chunk_hash b',
  ],
])(
  'SYNC-14: a row of %s that is completed and failed is named, and nothing is changed',
  async (table, rows, which) => {
    await run(
      `alter table importer.sync_checkpoints add column if not exists completed_at timestamptz, add column if not exists failed_at timestamptz`,
    )
    await run(`insert into importer.${table} ${rows}`)
    await run(`update importer.sync_checkpoints set completed_at = last_synced_at`)
    await expect(migrate(db, { schema })).rejects.toMatchObject({
      code: 'MIGRATION_FAILED',
      message: expect.stringContaining(`the row of ${table} ${which} has both completed_at and failed_at`),
    })
  },
)

it('SYNC-14: tables that cannot be used are refused with all problems, and nothing is changed', async () => {
  await run(`alter table importer.sync_jobs alter requested_by set not null, alter created_at type timestamp;
    alter table importer.sync_checkpoints rename matrix_id to matrix; alter table importer.sync_checkpoints alter row_count type text`)
  await expect(migrate(db, { schema })).rejects.toMatchObject({
    code: 'MIGRATION_FAILED',
    message: expect.stringContaining(
      'the tables that exist already cannot be used: sync_checkpoints has no column matrix_id; ' +
        'sync_checkpoints.matrix is not null and has no default; sync_checkpoints.row_count is text and must be integer or bigint; ' +
        'sync_jobs.created_at is timestamp without time zone and must be timestamp with time zone; ' +
        'sync_jobs.requested_by is not null and has no default',
    ) as string,
  })
  const { rows } = await db.query({
    text: `select from information_schema.columns where table_schema = 'importer' and column_name in ('definition', 'locked_by')`,
  })
  expect(rows).toEqual([])
})
