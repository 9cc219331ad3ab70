import { randomBytes } from 'node:crypto'
import { describe, expect, it, onTestFinished } from 'vitest'
import { distributeWithoutCitus } from '../../../test/support/citus.ts'
import { useDatabase } from '../../../test/support/database.ts'
import { useExaminedServer } from '../../../test/support/examined-server.ts'
import { makeEvents } from '../../../test/support/outbox-rows.ts'
import { findClientPrograms, startServer } from '../../../test/support/server.ts'
import { type Database, migrate, openDatabase } from '../../postgres/index.ts'
import { ROLE_KINDS } from '../../postgres/permissions.ts'
import { examine, type Finding } from '../doctor.ts'
import { makeSnapshot, mergePatch, patchBetween, readSnapshot } from './snapshot.ts'

const server = useExaminedServer()
const shared = useDatabase()
const programs = await findClientPrograms()

/** What the checks of the schema find. */
async function driftIn(db: Database, schema = 'leasehold'): Promise<readonly Finding[]> {
  const { findings, checks } = await examine(db, { schema })
  expect(checks.filter(({ id, skipped }) => id.startsWith('schema-') && skipped !== undefined)).toEqual([])
  return findings.filter(({ check }) => check.startsWith('schema-') || check === 'vacuum-settings')
}

function opened(url: string): Database {
  const db = openDatabase({ url })
  onTestFinished(async () => db.close())
  return db
}

it('the snapshot is what the migrations create; after a change run `npm run schema`', async () => {
  const db = opened(shared.url)
  const { rows } = await db.query<{ version: number }>({
    text: `select current_setting('server_version_num')::int as version`,
  })
  // Older ones print some definitions in another way; that they are recognised is another test.
  if ((rows[0]?.version ?? 0) < 180_000) return
  const made = JSON.parse(JSON.stringify(await makeSnapshot(db))) as unknown
  expect(made).toEqual(await readSnapshot())
})

it('a schema that was just migrated has no findings, whatever its name is', async () => {
  const db = opened(shared.url)
  await migrate(db, { schema: `an "odd' name` })
  expect(await driftIn(db, `an "odd' name`)).toEqual([])
  await db.query({ text: `drop schema "an ""odd' name" cascade` })
})

it('a schema with several buckets has no findings, and neither has one that is distributed', async () => {
  const db = opened(shared.url)
  await migrate(db, { schema: 'eight', buckets: 8 })
  expect(await driftIn(db, 'eight')).toEqual([])
  await db.query({ text: 'drop schema eight cascade' })
  await distributeWithoutCitus(db, 4)
  expect(await driftIn(db)).toEqual([])
})

it('a trigger of the buckets that is missing is found', async () => {
  const db = opened(shared.url)
  await migrate(db, { schema: 'four', buckets: 4 })
  await db.query({ text: 'drop trigger outbox_bucket_missing on four.outbox' })
  const [found, ...others] = await driftIn(db, 'four')
  expect(others).toEqual([])
  expect(found?.text).toBe('The trigger outbox_bucket_missing of four.outbox is missing.')
  for (const text of found?.repair ?? []) await db.query({ text })
  expect(await driftIn(db, 'four')).toEqual([])
  await db.query({ text: 'drop schema four cascade' })
})

it.skipIf(programs === undefined)(
  'an older PostgreSQL, which prints definitions in another way, has no findings',
  async () => {
    if (programs === undefined) return
    const older = await startServer({ binaries: programs })
    onTestFinished(async () => older.remove())
    const db = opened(older.url)
    await migrate(db)
    expect(await driftIn(db)).toEqual([])
    await migrate(db, { buckets: 4 })
    expect(await driftIn(db)).toEqual([])
    const { findings } = await examine(db)
    expect(findings.filter(({ text }) => text.includes('could not be made'))).toEqual([])
  },
)

it('roles with another prefix are compared by their own names', async () => {
  const prefix = `drift_${randomBytes(4).toString('hex')}`
  const admin = opened(shared.url)
  await admin.query({ text: `alter database ${shared.name} set leasehold.role_prefix = '${prefix}'` })
  const db = opened(shared.url)
  await migrate(db, { schema: 'prefixed' })
  expect(await driftIn(db, 'prefixed')).toEqual([])
  await db.query({ text: `revoke select on prefixed.outbox from ${prefix}_reader` })
  expect(await driftIn(db, 'prefixed')).toMatchObject([
    { check: 'schema-grants', repair: [`grant select on prefixed.outbox to ${prefix}_reader`] },
  ])
  await db.query({ text: `grant select on prefixed.outbox to ${prefix}_reader` })
  // The roles of other tests are not touched.
  const repair = `alter role ${prefix}_tenant nosuperuser nobypassrls`
  for (const attribute of ['bypassrls', 'superuser']) {
    await db.query({ text: `alter role ${prefix}_tenant ${attribute}` })
    expect(await driftIn(db, 'prefixed')).toContainEqual(
      expect.objectContaining({ check: 'schema-policies', severity: 'error', repair: [repair] }),
    )
    await db.query({ text: repair })
    expect(await driftIn(db, 'prefixed')).toEqual([])
  }
  await db.query({
    text: `alter database ${shared.name} reset leasehold.role_prefix;
drop schema prefixed cascade;
${ROLE_KINDS.map((kind) => `drop owned by ${prefix}_${kind}; drop role ${prefix}_${kind}`).join(';')}`,
  })
})

it('a table that the role of tenants owns is found, because policies do not limit its owner', async () => {
  const db = opened(shared.url)
  await migrate(db, { schema: 'owned' })
  await db.query({ text: 'alter table owned.audit owner to leasehold_tenant' })
  expect(await driftIn(db, 'owned')).toContainEqual(
    expect.objectContaining({
      check: 'schema-policies',
      severity: 'error',
      text: expect.stringContaining('The role leasehold_tenant owns owned.audit'),
    }),
  )
  await db.query({ text: 'drop schema owned cascade' })
})

it.each(['serial', 'uuid default gen_random_uuid()'])(
  'tables that sync has adopted keep their own columns and types: id %s',
  async (id) => {
    const db = opened(shared.url)
    await db.query({
      text: `create schema adopted;
create table adopted.sync_jobs (id ${id} primary key, matrix_id varchar(200), customer text, attempts smallint);
create table adopted.sync_checkpoints (matrix_id varchar(200), chunk_hash text, note text, unique (matrix_id, chunk_hash))`,
    })
    await migrate(db, { schema: 'adopted' })
    expect(await driftIn(db, 'adopted')).toEqual([])
    await db.query({ text: 'drop schema adopted cascade' })
  },
)

interface Drift {
  readonly check: string
  readonly severity?: 'error' | 'warning'
  /** A part of the text of the finding. */
  readonly says: string
  readonly by: readonly string[]
}

const DRIFTS: readonly Drift[] = [
  {
    check: 'schema-policies',
    says: 'Row-level security of leasehold.webhook_outbox is turned off',
    by: ['alter table leasehold.webhook_outbox disable row level security'],
  },
  {
    check: 'schema-policies',
    says: 'The policy webhook_endpoints_all of leasehold.webhook_endpoints is missing',
    by: ['drop policy webhook_endpoints_all on leasehold.webhook_endpoints'],
  },
  {
    check: 'schema-policies',
    says: 'The policy leasehold_tenant of leasehold.audit is missing',
    by: ['drop policy leasehold_tenant on leasehold.audit'],
  },
  {
    check: 'schema-policies',
    says: 'The policy leasehold_tenant of leasehold.webhook_endpoints is missing or was changed',
    by: ['alter policy leasehold_tenant on leasehold.webhook_endpoints using (true)'],
  },
  {
    check: 'schema-policies',
    says: 'The policy leasehold_tenant of leasehold.webhook_outbox is missing or was changed',
    by: [
      `create table public.webhook_endpoints as select id from leasehold.webhook_endpoints`,
      'grant select on public.webhook_endpoints to public',
      'alter policy leasehold_tenant on leasehold.webhook_outbox using (endpoint_id in (select id from public.webhook_endpoints))',
    ],
  },
  {
    check: 'schema-policies',
    says: 'The policy leasehold_tenant of leasehold.audit is missing or was changed',
    by: ['alter policy leasehold_tenant on leasehold.audit with check (false)'],
  },
  {
    check: 'schema-policies',
    says: 'The policy webhook_outbox_all of leasehold.webhook_outbox was changed',
    by: [`alter policy webhook_outbox_all on leasehold.webhook_outbox using (delivery_status <> 'failed')`],
  },
  {
    check: 'schema-policies',
    says: 'The policy audit_all of leasehold.audit was changed',
    by: [
      'drop policy audit_all on leasehold.audit',
      'create policy audit_all on leasehold.audit for select using (true)',
    ],
  },
  { check: 'schema-tables', says: 'inbox is missing', by: ['drop table leasehold.inbox'] },
  {
    check: 'schema-tables',
    says: 'last_response is missing',
    by: ['alter table leasehold.webhook_outbox drop column last_response'],
  },
  {
    check: 'schema-tables',
    says: 'is bigint and must be integer',
    by: ['alter table leasehold.webhook_endpoints alter column failures type bigint'],
  },
  {
    check: 'schema-tables',
    says: 'has no default and must have 0',
    by: ['alter table leasehold.outbox alter column attempts drop default'],
  },
  {
    check: 'schema-tables',
    says: 'may be null',
    by: ['alter table leasehold.audit alter column principal drop not null'],
  },
  {
    check: 'schema-tables',
    says: 'storage of its type and must have external',
    by: ['alter table leasehold.outbox alter column headers set storage extended'],
  },
  {
    check: 'schema-constraints',
    says: 'webhook_endpoints_url_is_http of leasehold.webhook_endpoints is missing',
    by: ['alter table leasehold.webhook_endpoints drop constraint webhook_endpoints_url_is_http'],
  },
  {
    check: 'schema-constraints',
    says: 'must be CHECK',
    by: [
      'alter table leasehold.sync_jobs drop constraint sync_jobs_attempts_in_range',
      'alter table leasehold.sync_jobs add constraint sync_jobs_attempts_in_range check (attempts >= 0)',
    ],
  },
  {
    check: 'schema-constraints',
    severity: 'warning',
    says: 'is not validated',
    by: [
      'alter table leasehold.settings drop constraint settings_value_is_an_object',
      `alter table leasehold.settings add constraint settings_value_is_an_object check (jsonb_typeof(value) = 'object') not valid`,
    ],
  },
  { check: 'schema-indexes', says: 'outbox_pending is missing', by: ['drop index leasehold.outbox_pending'] },
  {
    check: 'schema-indexes',
    says: 'and must be CREATE INDEX outbox_dead',
    by: [
      'drop index leasehold.outbox_dead',
      `create index outbox_dead on leasehold.outbox (id) where status = 'DEAD'`,
    ],
  },
  {
    check: 'schema-indexes',
    says: 'outbox_in_flight is invalid',
    by: [`update pg_index set indisvalid = false where indexrelid = 'leasehold.outbox_in_flight'::regclass`],
  },
  {
    check: 'schema-triggers',
    says: 'outbox_written of leasehold.outbox is disabled and must be enabled',
    by: ['alter table leasehold.outbox disable trigger outbox_written'],
  },
  {
    check: 'schema-triggers',
    says: 'outbox_checked of leasehold.outbox is enabled and must be enabled always',
    by: ['alter table leasehold.outbox enable trigger outbox_checked'],
  },
  {
    check: 'schema-triggers',
    says: 'webhook_outbox_checked of leasehold.webhook_outbox is missing',
    by: ['drop trigger webhook_outbox_checked on leasehold.webhook_outbox'],
  },
  {
    check: 'schema-triggers',
    severity: 'warning',
    says: "count_events of leasehold.outbox is not one of Leasehold's",
    by: [
      `create function public.count_events() returns trigger language plpgsql as 'begin return null; end'`,
      'create trigger count_events after insert on leasehold.outbox for each row execute function public.count_events()',
    ],
  },
  {
    check: 'schema-functions',
    says: 'wake(text) is not the one of this release',
    by: [
      `create or replace function leasehold.wake(name text) returns void language plpgsql as 'begin return; end'`,
    ],
  },
  {
    check: 'schema-functions',
    says: 'find_event(uuid) is missing',
    by: ['drop function leasehold.find_event(uuid)'],
  },
  {
    check: 'schema-views',
    says: 'webhook_attempts is missing',
    by: ['drop view leasehold.webhook_attempts'],
  },
  {
    check: 'schema-views',
    says: 'sync_job_states is not the one of this release',
    by: ['alter view leasehold.sync_job_states set (security_invoker = false)'],
  },
  {
    check: 'schema-grants',
    says: 'leasehold_reader lacks select on leasehold.outbox',
    by: ['revoke select on leasehold.outbox from leasehold_reader'],
  },
  {
    check: 'schema-grants',
    says: 'leasehold_producer lacks insert (payload) on leasehold.outbox',
    by: ['revoke insert (payload) on leasehold.outbox from leasehold_producer'],
  },
  {
    check: 'schema-grants',
    severity: 'warning',
    says: 'leasehold_producer has more than it needs: delete on leasehold.outbox',
    by: ['grant delete on leasehold.outbox to leasehold_producer'],
  },
  {
    check: 'vacuum-settings',
    says: 'autovacuum_enabled is off and was not set',
    by: ['alter table leasehold.outbox set (autovacuum_enabled = off)'],
  },
  {
    check: 'vacuum-settings',
    severity: 'warning',
    says: 'vacuum_truncate is not set and was shipped as off',
    by: ['alter table leasehold.outbox reset (vacuum_truncate)'],
  },
  {
    check: 'schema-roles',
    severity: 'warning',
    says: 'The role leasehold_operator does not exist',
    by: ['drop owned by leasehold_operator', 'drop role leasehold_operator'],
  },
]

/** Those that concern different objects are examined together, because an examination costs more than all of them. */
const ROUNDS = DRIFTS.reduce<Drift[][]>((rounds, drift) => {
  const table = (by: readonly string[]): string => /leasehold[._]\w+/.exec(by.join(' '))?.[0] ?? ''
  const round = rounds.find((others) => others.every(({ by }) => table(by) !== table(drift.by)))
  if (round === undefined) rounds.push([drift])
  else round.push(drift)
  return rounds
}, [])

describe('drift', () => {
  it.each(ROUNDS.map((drifts, round) => ({ round: round + 1, drifts })))(
    'each of them is found, and the printed repair mends it (round $round)',
    async ({ drifts }) => {
      for (const { by } of drifts) await server.asAdmin(...by)
      const { findings } = await server.examine()
      const expected = drifts.map(({ check, severity = 'error', says }) => ({
        check,
        severity,
        text: expect.stringContaining(says) as unknown,
        remedy: expect.any(String) as unknown,
        repair: expect.any(Array) as unknown,
      }))
      for (const finding of expected) expect(findings).toContainEqual(finding)
      expect(findings).toHaveLength(expected.length)
      for (const found of findings) {
        expect(found.repair?.length).toBeGreaterThan(0)
        await server.repair(found)
      }
      expect((await server.examine()).findings).toEqual([])
    },
  )

  it.each([
    [
      'a primary key that is missing',
      ['alter table leasehold.inbox drop constraint inbox_pkey'],
      [
        'create unique index concurrently inbox_pkey_new on leasehold.inbox (consumer, event_id)',
        'alter table leasehold.inbox add constraint inbox_pkey primary key using index inbox_pkey_new',
      ],
    ],
    [
      'a unique constraint that was changed',
      [
        'alter table leasehold.webhook_outbox drop constraint webhook_outbox_once_for_each_endpoint, add constraint webhook_outbox_once_for_each_endpoint unique (event_id, endpoint_id, bucket, id)',
      ],
      [
        'create unique index concurrently webhook_outbox_once_for_each_endpoint_new on leasehold.webhook_outbox (event_id, endpoint_id, bucket)',
        'alter table leasehold.webhook_outbox drop constraint webhook_outbox_once_for_each_endpoint, add constraint webhook_outbox_once_for_each_endpoint unique using index webhook_outbox_once_for_each_endpoint_new',
      ],
    ],
    [
      'an index that was changed',
      [
        'drop index leasehold.outbox_in_flight',
        `create unique index outbox_in_flight on leasehold.outbox (ordering_key) where status = 'CLAIMED'`,
      ],
      [
        `CREATE UNIQUE INDEX CONCURRENTLY outbox_in_flight_new ON leasehold.outbox USING btree (bucket, ordering_key) INCLUDE (id) WHERE (status = 'CLAIMED'::text)`,
        'drop index concurrently leasehold.outbox_in_flight',
        'alter index leasehold.outbox_in_flight_new rename to outbox_in_flight',
      ],
    ],
    [
      'a column that may be null',
      ['alter table leasehold.outbox alter column payload drop not null'],
      [
        'alter table leasehold.outbox add constraint outbox_payload_is_given check (payload is not null) not valid',
        'alter table leasehold.outbox validate constraint outbox_payload_is_given',
        'alter table leasehold.outbox alter column payload set not null, drop constraint outbox_payload_is_given',
      ],
    ],
  ])(
    'the repair of %s reads no table while it is locked, and leaves no time without an index',
    async (_, by, repair) => {
      await server.asAdmin(...by)
      const { findings } = await server.examine()
      expect(findings).toMatchObject([{ repair }])
      for (const finding of findings) await server.repair(finding)
      expect((await server.examine()).findings).toEqual([])
    },
  )

  it('an index of your own is a remark, and no finding', async () => {
    await server.asAdmin('create index reports on leasehold.outbox (created_at)')
    const { findings, checks } = await server.examine()
    expect(findings).toEqual([])
    expect(checks.find(({ id }) => id === 'schema-indexes')).toMatchObject({
      ok: true,
      remarks: [expect.stringContaining("The index leasehold.reports is not one of Leasehold's.")],
    })
    await server.asAdmin('drop index leasehold.reports')
  })

  it('the remedy says that a repair which cannot avoid it locks the table', async () => {
    await server.asAdmin('alter table leasehold.api_keys drop column id cascade')
    const { findings } = await server.examine()
    expect(findings.find(({ check }) => check === 'schema-tables')?.remedy).toContain(
      'the table is rewritten, and nobody can read or write it meanwhile',
    )
    for (let rounds = 0; rounds < 5; rounds += 1)
      for (const finding of (await server.examine()).findings) await server.repair(finding)
    expect((await server.examine()).findings).toEqual([])
  })

  it.each([
    ['nothing', []],
    [
      'a sequence of another tool',
      [
        'create sequence leasehold.own',
        `alter table leasehold.outbox alter column id set default nextval('leasehold.own')`,
      ],
    ],
  ])(
    'an identity that was replaced by %s continues behind the rows that are there after the repair',
    async (_, by) => {
      await makeEvents(server.db(), 20)
      await server.asAdmin('alter table leasehold.outbox alter column id drop identity', ...by)
      const { findings } = await server.examine()
      expect(findings).toMatchObject([
        { check: 'schema-tables', text: expect.stringContaining('must be generated by default as identity') },
      ])
      for (const finding of findings) await server.repair(finding)
      expect((await server.examine()).findings).toEqual([])
      const { rows } = await server.db().query<{ id: string; last: string }>({
        text: `with last as (select max(id) as id from leasehold.outbox)
insert into leasehold.outbox (event_type, payload) values ('t', '{}') returning id::text, (select id::text from last) as last`,
      })
      expect(rows).toEqual([{ id: String(BigInt(rows[0]?.last ?? 0) + 1n), last: expect.any(String) }])
      await server.asAdmin('truncate leasehold.outbox', 'drop sequence if exists leasehold.own')
    },
  )

  it('a table that was recreated by the repair takes events of every role as before', async () => {
    await server.asAdmin('drop table leasehold.outbox cascade')
    for (let rounds = 0; rounds < 5; rounds += 1) {
      const { findings } = await server.examine()
      if (findings.length === 0) break
      for (const finding of findings) await server.repair(finding)
    }
    expect((await server.examine()).findings).toEqual([])
    await server.asAdmin(
      'set role leasehold_producer',
      `select leasehold.enqueue('order.paid', '{"n": 1}', 'customer 1')`,
      'reset role',
      'delete from leasehold.outbox',
    )
  })

  it('a migration that is missing, and one that was changed, are found', async () => {
    await server.asAdmin(`update leasehold.migrations set checksum = 'x' where version = 2`)
    const changed = await server.examine()
    expect(changed.findings).toMatchObject([
      {
        check: 'schema-migrations',
        text: 'Applied with another text than this release has: 002_outbox.sql.',
      },
    ])
    await server.asAdmin('update leasehold.migrations set version = -3 where version = 3')
    const missing = await server.examine()
    expect(missing.findings[0]?.text).toBe('Not applied to the schema leasehold: 003_webhooks.sql.')
    expect(missing.checks.find(({ id }) => id === 'schema-tables')?.skipped).toContain('leasehold migrate')
    const { rows } = await opened(shared.url).query<{ checksum: string }>({
      text: 'select checksum from leasehold.migrations where version = 2',
    })
    await server.asAdmin(
      'update leasehold.migrations set version = 3 where version = -3',
      `update leasehold.migrations set checksum = '${rows[0]?.checksum}' where version = 2`,
    )
    expect((await server.examine()).findings).toEqual([])
  })

  it('a schema without tables is one finding, and the server is examined all the same', async () => {
    const { findings, checks } = await server.examine({ schema: 'nowhere' })
    expect(findings).toMatchObject([
      { check: 'schema-migrations', text: 'The schema nowhere has no tables of Leasehold.' },
    ])
    expect(checks.find(({ id }) => id === 'server-version')).toMatchObject({ ok: true })
    expect(checks.find(({ id }) => id === 'rows-dead')?.skipped).toContain('no tables')
  })
})

it('a merge patch makes one document of another', () => {
  const before = { a: { b: 'x', c: ['y'] }, d: 'z' }
  const after = { a: { b: 'w', c: ['y'], e: { f: 'g' } } }
  expect(patchBetween(before, after)).toEqual({ a: { b: 'w', e: { f: 'g' } }, d: null })
  expect(mergePatch(before, patchBetween(before, after))).toEqual(after)
})
