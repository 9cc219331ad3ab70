import { afterAll, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { settled } from '../../test/support/running-worker.ts'
import { useRuntimes } from '../../test/support/runtimes.ts'
import { WORK_TABLE } from '../../test/support/work-table.ts'
import { leaseTable } from '../lease/index.ts'
import { openDatabase } from '../postgres/database.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const start = useRuntimes(url)
afterAll(async () => db.close())

it("a worker serves all buckets of a user's own table, however many there are", async () => {
  await db.query({
    text: `create table public.jobs (
      id bigint generated always as identity,
      bucket smallint not null,
      status text not null default 'PENDING',
      attempts int not null default 0,
      max_attempts int not null default 5,
      expiries int not null default 0,
      last_error text,
      available_at timestamptz default now(),
      claimed_by text,
      locked_until timestamptz,
      lock_token bigint not null default 0,
      primary key (bucket, id)
    );
    create index on public.jobs (bucket, available_at, id) where available_at is not null and expiries < 2;
    create index on public.jobs (bucket, available_at, id) where available_at is not null and expiries >= 2;
    create index on public.jobs (bucket, id) where status = 'CLAIMED';
    insert into public.jobs (bucket) select n % 7 from generate_series(1, 70) as n`,
  })
  const table = leaseTable({ ...WORK_TABLE, bucket: 'bucket' })
  const { events } = await start([{ name: 'jobs', table, bucket: 'all', handle: async () => undefined }])
  await settled(events, 70)
  const { rows } = await db.query({
    text: "select bucket, count(*)::int as done from public.jobs where status = 'DONE' group by bucket order by bucket",
  })
  expect(rows).toEqual(Array.from({ length: 7 }, (_, bucket) => ({ bucket, done: 10 })))
})
