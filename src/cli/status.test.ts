import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest'
import { type Called, callLeasehold, type CallOptions } from '../../test/support/command-line.ts'
import { useDatabase } from '../../test/support/database.ts'
import { removeDirectory, temporaryDirectory } from '../../test/support/directory.ts'
import { makeEvents } from '../../test/support/outbox-rows.ts'
import { openDatabase } from '../postgres/index.ts'

const database = useDatabase()
const db = openDatabase({ url: database.url })
let workingDirectory = ''
beforeAll(async () => {
  workingDirectory = await temporaryDirectory()
})
afterAll(async () => {
  await db.close()
  await removeDirectory(workingDirectory)
})
beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.outbox, leasehold.workers restart identity' })
})

async function status(args: readonly string[] = [], options: Partial<CallOptions> = {}): Promise<Called> {
  return callLeasehold(['status', ...args], { databaseUrl: database.url, workingDirectory, ...options })
}

it('an empty outbox with nobody at work', async () => {
  expect((await status()).stdout).toBe(`No workers.

OUTBOX            PENDING  LEASED  PUBLISHED  DEAD  OLDEST PENDING
leasehold.outbox  0        0       0          0     -
`)
})

it('counts by state, the age of the oldest that waits, and the keys that are held up, with what to do', async () => {
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
  await db.query({
    text: `update leasehold.outbox set available_at = case attempts when 0 then now() - interval '5 minutes'
  else now() + interval '10 minutes' end where status = 'PENDING'`,
  })
  const { code, stdout } = await status()
  expect(code).toBe(0)
  expect(stdout.split('\n').slice(2)).toEqual([
    'OUTBOX            PENDING  LEASED  PUBLISHED  DEAD  OLDEST PENDING',
    'leasehold.outbox  7        3       1,234      1     5 min',
    '',
    'KEY HELD UP  STATE    BY EVENT  FAILED  WAITING  NEXT TRY   LAST ERROR',
    'customer 1   parked   1         25      2        -          no receiver',
    'customer 2   blocked  1241      3       4        in 10 min',
    "A parked key waits for you: `leasehold outbox unblock <key> --reason '…'`.",
    '',
  ])
})

it('--json is one document with stable names', async () => {
  await makeEvents(db, 1, { status: 'DEAD', parked: true, key: `'k'`, attempts: 1, error: 'x' })
  await makeEvents(db, 1)
  const { stdout } = await status(['--json'])
  expect(JSON.parse(stdout)).toEqual({
    workers: [],
    outbox: {
      counts: {
        pending: { count: 1, exact: true },
        claimed: { count: 0, exact: true },
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
    tables: [],
  })
})

it('a schema from before the outbox shows the rest, and what to do', async () => {
  await db.query({ text: 'create schema earlier' })
  await db.query({ text: 'create table earlier.workers (like leasehold.workers)' })
  const { code, stdout } = await status(['--schema', 'earlier'])
  expect(code).toBe(0)
  expect(stdout).toBe(
    'No workers.\n\nearlier.outbox: the schema earlier has no outbox yet: run `leasehold migrate`\n',
  )
})
