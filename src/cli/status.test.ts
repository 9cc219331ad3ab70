import { beforeEach, expect, it } from 'vitest'
import { useCommandLine } from '../../test/support/command-line.ts'
import { useConfigFiles } from '../../test/support/config-files.ts'
import { makeEvents } from '../../test/support/outbox-rows.ts'
import { emptySync, makeChunks, makeJob } from '../../test/support/sync-rows.ts'
import { makeDeliveries } from '../../test/support/webhook-rows.ts'
import { forgetWebhooks, makeEndpoint } from '../../test/support/webhook-endpoints.ts'

const { db, call: status } = useCommandLine('status')
const { directoryWith } = useConfigFiles()
beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.outbox, leasehold.workers restart identity' })
  await forgetWebhooks(db)
  await emptySync(db)
})

it('status prints zeros when there are no workers and no rows', async () => {
  expect((await status()).stdout).toBe(`No workers.

OUTBOX            PENDING  IN FLIGHT  PUBLISHED  DEAD  OLDEST PENDING
leasehold.outbox  0        0          0          0     -

WEBHOOKS                  PENDING  IN FLIGHT  DELIVERED  FAILED  OLDEST PENDING
leasehold.webhook_outbox  0        0          0          0       -

SYNC                 OPEN  COMPLETED  FAILED  CHUNKS WAITING  CHUNKS IN FLIGHT
leasehold.sync_jobs  0     0          0       0               0
`)
})

it('status prints events by state, the age of the oldest pending event, and held-up keys with the remedy', async () => {
  await makeEvents(db, 1, {
    status: 'DEAD',
    parked: true,
    key: `'customer 1'`,
    attempts: 25,
    error: 'no\nreceiver',
  })
  await makeEvents(db, 2, { key: `'customer 1'` })
  await makeEvents(db, 1_234, { status: 'PUBLISHED' })
  await makeEvents(db, 3, { status: 'CLAIMED' })
  await makeEvents(db, 1, { key: `'customer 2'`, attempts: 3 })
  await makeEvents(db, 4, { key: `'customer 2'` })
  await makeEvents(db, 1)
  await db.query({
    text: `update leasehold.outbox set available_at = case attempts when 0 then now() - interval '5 minutes'
  else now() + interval '10 minutes' end where status = 'PENDING'`,
  })
  const { code, stdout } = await status()
  expect(code).toBe(0)
  expect(stdout.split('\n').slice(2, 10)).toEqual([
    'OUTBOX            PENDING  IN FLIGHT  PUBLISHED  DEAD  OLDEST PENDING',
    'leasehold.outbox  8        3          1,234      1     5 min',
    '',
    'KEY HELD UP  STATE    BY EVENT  FAILED  WAITING  NEXT TRY   LAST ERROR',
    'customer 1   parked   1         25      2        -          no receiver',
    'customer 2   blocked  1241      3       4        in 10 min',
    "A parked key waits for you: `leasehold outbox unblock <key> --reason '…'`.",
    '',
  ])
})

it('status --json prints one document with stable names', async () => {
  await makeEvents(db, 1, { status: 'DEAD', parked: true, key: `'k'`, attempts: 1, error: 'x' })
  await makeEvents(db, 1)
  const { stdout } = await status(['--json'])
  expect(JSON.parse(stdout)).toEqual({
    workers: [],
    outbox: {
      counts: {
        pending: { count: 1, exact: true },
        inFlight: { count: 0, exact: true },
        published: { count: 0, exact: true },
        dead: { count: 1, exact: true },
      },
      oldestPending: {
        id: '2',
        type: 'order.paid',
        orderingKey: null,
        availableAt: expect.stringMatching(/^\d{4}-/),
        waitingMs: expect.any(Number),
      },
      keysHeldUp: [
        {
          orderingKey: 'k',
          state: 'parked',
          id: '1',
          type: 'order.paid',
          attempts: 1,
          lastError: 'x',
          availableAt: null,
          waiting: 0,
        },
      ],
      moreKeysHeldUp: false,
    },
    webhooks: {
      counts: {
        pending: { count: 0, exact: true },
        inFlight: { count: 0, exact: true },
        delivered: { count: 0, exact: true },
        failed: { count: 0, exact: true },
      },
      oldestPending: null,
      endpoints: [],
      moreEndpoints: false,
    },
    sync: {
      counts: {
        open: { count: 0, exact: true },
        completed: { count: 0, exact: true },
        failed: { count: 0, exact: true },
        chunksWaiting: { count: 0, exact: true },
        chunksInFlight: { count: 0, exact: true },
      },
      jobs: [],
      moreJobs: false,
    },
    tables: [],
    unreapedTables: [],
  })
})

it('status prints deliveries by state, and the endpoints that receive nothing with the remedy', async () => {
  const disabled = await makeEndpoint(db, { url: 'https://shut.example/', disabledReason: 'answered\n410' })
  const well = await makeEndpoint(db, { url: 'https://well.example/' })
  await makeDeliveries(db, disabled, 1_500, { agoMs: 300_000 })
  await makeDeliveries(db, well, 2, { owner: 'host:1' })
  await makeDeliveries(db, well, 3, { status: 'delivered' })
  await makeDeliveries(db, well, 4, { status: 'failed' })
  const { stdout } = await status()
  expect(stdout.split('\n').slice(5, 13)).toEqual([
    'WEBHOOKS                  PENDING  IN FLIGHT  DELIVERED  FAILED  OLDEST PENDING',
    'leasehold.webhook_outbox  1,500    2          3          4       5 min',
    '',
    'ENDPOINT               STATE     PENDING        FAILED  DETAILS',
    expect.stringMatching(
      /^https:\/\/shut.example\/ {2}disabled {2}1,000 or more {2}0 {7}disabled for \d+ s: answered 410$/,
    ),
    'https://well.example/  ok        2              4',
    "To replay failed deliveries: `leasehold webhooks replay --since … --reason '…'`.",
    '',
  ])
  expect(JSON.parse((await status(['--json'])).stdout)).toMatchObject({
    webhooks: {
      counts: {
        pending: { count: 1_500 },
        inFlight: { count: 2 },
        delivered: { count: 3 },
        failed: { count: 4 },
      },
      oldestPending: { endpointId: disabled },
      endpoints: [
        { id: disabled, state: 'disabled', reason: 'answered\n410', pending: 1_000, failed: 0 },
        { id: well, state: 'ok', pending: 2, failed: 4 },
      ],
      moreEndpoints: false,
    },
  })
})

it('status prints sync jobs and chunks by state, and the progress of open jobs with the remedy', async () => {
  const syncing = await makeJob(db, { agoMs: 600_000 })
  await makeChunks(db, syncing, 20, { state: 'done', rows: 300, agoMs: 5_000 })
  await makeChunks(db, syncing, 2, { state: 'running', from: 21 })
  await makeChunks(db, syncing, 18, { from: 23 })
  await makeJob(db, { matrix: 'o', state: 'failed', error: 'no\nplan', planned: false })
  await makeJob(db, { matrix: 'p', state: 'completed' })
  const { stdout } = await status()
  expect(stdout.split('\n').slice(8)).toEqual([
    'SYNC                 OPEN  COMPLETED  FAILED  CHUNKS WAITING  CHUNKS IN FLIGHT',
    'leasehold.sync_jobs  1     1          1       18              2',
    '',
    'JOB  SYNC     MATRIX  PHASE    PROGRESS               ROWS   ROWS/S  ETA   DETAILS',
    '1    numbers  m       syncing  █████░░░░░ 50 % of 40  6,000  100     60 s',
    '2    numbers  o       failed   -                      0      -       -     no plan',
    "To replay failed jobs: `leasehold sync replay <job> --reason '…'`.",
    '',
  ])
  expect(JSON.parse((await status(['--json'])).stdout)).toMatchObject({
    sync: {
      counts: { open: { count: 1 }, chunksWaiting: { count: 18 }, chunksInFlight: { count: 2 } },
      jobs: [
        { id: '1', phase: 'syncing', chunks: { total: 40, done: 20 }, timeLeftMs: 60_000 },
        { id: '2', phase: 'failed', timeLeftMs: null },
      ],
      moreJobs: false,
    },
  })
})

it('status of a schema without the applications prints the workers and what to do', async () => {
  await db.query({ text: 'create schema earlier' })
  await db.query({ text: 'create table earlier.workers (like leasehold.workers)' })
  const { code, stdout } = await status(['--schema', 'earlier'])
  expect(code).toBe(0)
  expect(stdout).toBe(
    'No workers.\n\nearlier.outbox: the schema earlier has no outbox yet: run `leasehold migrate`\n\nearlier.webhook_outbox: the schema earlier has no webhooks yet: run `leasehold migrate`\n\nearlier.sync_jobs: the schema earlier has no sync yet: run `leasehold migrate`\n',
  )
})

it('status of a schema that does not exist is an error that says what to do', async () => {
  const { code, stdout, stderr } = await status(['--schema', 'nowhere'])
  expect([code, stdout]).toEqual([1, ''])
  expect(stderr).toBe(
    'leasehold: SETTING_INVALID: The schema nowhere has no worker registry yet. Run `leasehold migrate`, or name another schema with --schema.\n',
  )
})

it('RULE-020-020: status names the tables with leased rows that no live process reaps', async () => {
  await db.query({ text: 'truncate leasehold.workers, leasehold.outbox, leasehold.webhook_outbox' })
  await db.query({
    text: `insert into leasehold.workers (id, host, pid, version, roles, reaps)
values ('w1', 'h', 1, '0', '{outbox,reaper}', '{leasehold.outbox}')`,
  })
  const endpoint = await makeEndpoint(db)
  await makeDeliveries(db, endpoint, 1, { owner: 'host:1' })
  const warning =
    'No reaper is alive for leasehold.webhook_outbox, where rows are leased: run `leasehold work --only reaper`.'
  expect((await status()).stdout).toContain(warning)
  await db.query({
    text: `update leasehold.workers set reaps = '{leasehold.outbox,leasehold.webhook_outbox}'`,
  })
  expect((await status()).stdout).not.toContain('No reaper')
  await db.query({ text: 'truncate leasehold.workers, leasehold.webhook_outbox' })
})

it('status counts the rows of a table of the user, whose conditions may call what is on the search_path of the role', async () => {
  await db.query({
    text: `create function public.is_new(status text) returns boolean language sql immutable return status = 'new';
create table public.emails (id bigint primary key, status text not null default 'new', lease_owner text, lease_until timestamptz, lease_token bigint, attempts int not null default 0, last_error text);
insert into public.emails (id) values (1), (2)`,
  })
  const leasehold = new URL('../../dist/index.js', import.meta.url).href
  const workingDirectory = await directoryWith(`import { leaseTable } from '${leasehold}'
const table = leaseTable({ table: 'public.emails', claimable: 'is_new(status)', attempts: { max: 3, expiries: false }, outcomes: { done: { set: { status: "'sent'" } }, retry: {}, dead: { set: { status: "'dead'" } } } })
export default { workers: [{ name: 'emails', table, handle: async () => {} }] }`)
  const shown = await status([], { workingDirectory })
  expect(shown.stderr).toBe('')
  expect(shown.stdout).toMatch(/^public\.emails +2 +0 /m)
  await db.query({ text: 'drop table public.emails; drop function public.is_new' })
})
