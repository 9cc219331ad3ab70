import { beforeAll, expect, it } from 'vitest'
import { useApi } from '../../../../test/support/api.ts'
import { useRuntimes } from '../../../../test/support/runtimes.ts'
import { insertJobs, WORK_DDL, WORK_TABLE } from '../../../../test/support/work-table.ts'
import { leaseTable } from '../../../lease/index.ts'

const jobs = leaseTable(WORK_TABLE)
const others = leaseTable({ ...WORK_TABLE, table: 'public.others' })
const unworked = leaseTable({ ...WORK_TABLE, table: 'public.unworked' })
const spread = leaseTable({ table: 'public.spread', bucket: 'bucket', claimable: 'true' })
const declared = [
  { name: 'printing', table: jobs },
  { name: 'others', table: others },
  { name: 'spread', table: spread, bucket: 0 },
]

const { url, db, send } = useApi({ tables: [...declared, unworked] })
const start = useRuntimes(url)

beforeAll(async () => {
  await db.query({
    text: `${WORK_DDL};
create table public.others (like public.jobs including all);
create table public.unworked (like public.jobs including all);
insert into public.unworked (kind) values ('x');
create table public.spread (id int, bucket smallint not null, lease_owner text, lease_until timestamptz, lease_token bigint, primary key (bucket, id));
insert into public.spread (id, bucket) values (1, 3);
grant usage on schema public to public;
grant select on all tables in schema public to public`,
  })
})

async function explain(table: string, id: string) {
  const { status, body } = await send('GET', `/tables/${table}/rows/${id}/explain`, { key: 'read' })
  expect(status).toBe(200)
  return body
}

it('a row whose worker runs in no process is explained with noWorker, although a process runs another worker', async () => {
  const [id = ''] = await insertJobs(db, 1)
  const handle = async (): Promise<undefined> => Promise.resolve(undefined)
  await start([{ name: 'others', table: others, handle, settings: { paused: true } }])
  expect(await explain('public.jobs', id)).toMatchObject({
    state: 'claimable',
    reasons: [
      {
        code: 'noWorker',
        text: 'No worker process that is alive runs the worker printing.',
        command: 'leasehold work --only printing',
      },
    ],
  })
})

it('a row in a bucket that its worker does not serve is explained with bucketNotServed', async () => {
  const { reasons } = await explain('public.spread', '1')
  expect(reasons).toMatchObject([{ code: 'noWorker' }, { code: 'bucketNotServed' }])
})

it('of a table that is given without its workers, those that were ever started are known', async () => {
  const { reasons } = await explain('public.unworked', '1')
  expect(reasons).toMatchObject([
    { code: 'noWorker', text: 'No worker process that is alive runs a worker of public.unworked.' },
  ])
  const handle = async (): Promise<undefined> => Promise.resolve(undefined)
  const { runtime } = await start([{ name: 'started', table: unworked, handle, settings: { paused: true } }])
  await runtime.stop()
  expect((await explain('public.unworked', '1')).reasons).toMatchObject([
    { code: 'noWorker', by: runtime.id, command: 'leasehold work --only started' },
  ])
})

it('a table that the API was not given is not found', async () => {
  expect(await send('GET', '/tables/public.nowhere/rows/1/explain')).toMatchObject({ status: 404 })
})
