/** The byte budget of claims and prefetch, with a relay process whose heap is small. */
import { afterAll, beforeAll, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useProcesses } from '../../test/support/processes.ts'
import { allFinished, createSink, FINISHING, startRelay } from '../../test/support/worker-process.ts'
import { statuses } from '../../test/support/running-relay.ts'
import { openDatabase } from '../postgres/database.ts'

const { url } = useDatabase()
const processes = useProcesses()
const db = openDatabase({ url })
/** 393 MB, so that a process that kept them would not have the room. */
const EVENTS = 1_500

beforeAll(async () => createSink(db))
afterAll(async () => db.close())

it('1,500 events of 256 KiB drain in a process with a heap of 256 MB', async () => {
  await db.query({
    text: `insert into leasehold.outbox (event_type, payload)
      select 'large', jsonb_build_object('n', n, 'text', repeat('x', 262100)) from generate_series(1, $1::int) as n`,
    values: [EVENTS],
  })
  const execArgv = ['--max-old-space-size=256']
  const relay = startRelay(processes, { databaseUrl: url, tell: FINISHING, execArgv })
  await allFinished(db, relay)
  expect(await relay.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  expect(await statuses(db)).toEqual({ PUBLISHED: EVENTS })
}, 300_000)
