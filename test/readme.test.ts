import { Events } from 'leasehold'
import { Client } from 'pg'
import { beforeEach, afterEach, expect, it } from 'vitest'
import { sendSomeEmails } from '../examples/kernel.ts'
import { sendEmails } from '../examples/worker.ts'
import { useDatabase } from './support/database.ts'
import { marked, projectFile, snippets } from './support/project-files.ts'

const database = useDatabase()
let client: Client

beforeEach(async () => {
  client = new Client({ connectionString: database.url })
  await client.connect()
  await client.query('drop table if exists public.emails')
  await client.query(await projectFile('examples/emails.sql'))
})
afterEach(async () => client.end())

async function addEmails(count: number): Promise<void> {
  const text = `insert into public.emails (recipient) select 'reader@' || n from generate_series(1, $1::int) as n`
  await client.query(text, [count])
}

it.each([
  ['docs/guides/outbox.md', 'examples/orders.ts'],
  ['docs/guides/webhooks.md', 'examples/webhooks.ts'],
  ['docs/guides/sync.md', 'examples/sync.ts'],
  ['docs/guides/own-table.md', 'examples/worker.ts'],
])('%s shows the first part of %s', async (page, example) => {
  const [shown] = await marked(example)
  expect(shown).toBeDefined()
  expect(await snippets(page, 'ts')).toContain(shown)
})

it('the configuration in the guide of the outbox is identical to that of the example', async () => {
  expect(await snippets('docs/guides/outbox.md', 'js')).toContain(
    (await projectFile('examples/nats/leasehold.config.mjs')).trim(),
  )
})

it('the SQL in docs/guides/own-table.md is identical to that of the example', async () => {
  expect(await snippets('docs/guides/own-table.md', 'sql')).toEqual([
    (await projectFile('examples/emails.sql')).trim(),
  ])
})

it('in the worker example two workers send every email once, retry failures, and give up on what cannot be sent', async () => {
  await addEmails(100)
  await client.query(`insert into public.emails (recipient) values ('nobody')`)
  const sent: string[] = []
  let refusals = 1
  const send = async (recipient: string): Promise<void> => {
    if (recipient === 'reader@7' && refusals > 0) {
      refusals -= 1
      throw new Error('try later')
    }
    sent.push(recipient)
  }
  const events = new Events()
  const finished = new Set<string>()
  const allFinished = new Promise<void>((resolve) => {
    events.on('settled', ({ outcome, ids }) => {
      if (outcome !== 'retry') for (const id of ids) finished.add(id)
      if (finished.size === 101) resolve()
    })
  })
  const workers = await Promise.all([
    sendEmails(database.url, send, events),
    sendEmails(database.url, send, events),
  ])
  await allFinished
  for (const worker of workers) expect(await worker.stop()).toEqual({ clean: true })

  expect(sent.toSorted()).toEqual(Array.from({ length: 100 }, (_, n) => `reader@${n + 1}`).toSorted())
  const { rows } = await client.query(
    `select recipient, attempts, last_error, sent_at is not null as sent, failed_at is not null as failed
     from public.emails where recipient in ('reader@7', 'nobody') order by recipient`,
  )
  expect(rows).toEqual([
    {
      recipient: 'nobody',
      attempts: 1,
      last_error: 'PermanentError: not an address',
      sent: false,
      failed: true,
    },
    { recipient: 'reader@7', attempts: 1, last_error: 'Error: try later', sent: true, failed: false },
  ])
})

it('in the kernel example two processes send every email once, and one whose lease has expired is fenced off', async () => {
  await addEmails(12)
  const sent: string[] = []
  const send = async ({ recipient }: { recipient: string }): Promise<void> => {
    sent.push(recipient)
  }
  const [first, second] = await Promise.all([
    sendSomeEmails(database.url, 'worker 1', send),
    sendSomeEmails(database.url, 'worker 2', send),
  ])
  expect(first.sent + second.sent).toBe(12)
  expect(new Set(sent).size).toBe(12)
  expect(sent).toHaveLength(12)

  await addEmails(1)
  const tooSlow = await sendSomeEmails(database.url, 'worker 1', async () => {
    await client.query(`update public.emails set lease_until = now() - interval '1 s' where sent_at is null`)
    await sendSomeEmails(database.url, 'worker 2', send)
  })
  expect(tooSlow).toEqual({ sent: 0, fencedOff: 1 })
})
