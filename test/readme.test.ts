import { readFile } from 'node:fs/promises'
import { Client } from 'pg'
import { expect, it, onTestFinished } from 'vitest'
import { sendEmails } from '../examples/kernel.ts'
import { useDatabase } from './support/database.ts'

const database = useDatabase()

async function read(path: string): Promise<string> {
  return readFile(new URL(`../${path}`, import.meta.url), 'utf8')
}

/** The code blocks of a language in the README. */
async function snippets(language: string): Promise<string[]> {
  const blocks = (await read('README.md')).matchAll(/^```(\w+)\n(.*?)^```$/gms)
  return [...blocks].filter(([, of]) => of === language).map(([, , code = '']) => code.trim())
}

it('the TypeScript in the README is the example, word for word', async () => {
  const [, shown = ''] = /^\/\/ begin\n(.*)^\/\/ end$/ms.exec(await read('examples/kernel.ts')) ?? []
  expect(shown.trim()).not.toBe('')
  expect(await snippets('ts')).toEqual([shown.trim()])
})

it('the SQL in the README is the table of the example, word for word', async () => {
  expect(await snippets('sql')).toEqual([(await read('examples/emails.sql')).trim()])
})

it('the example runs: two workers send every email once, and one whose lease ended is fenced off', async () => {
  const client = new Client({ connectionString: database.url })
  await client.connect()
  onTestFinished(async () => client.end())
  await client.query(await read('examples/emails.sql'))
  await client.query(
    `insert into public.emails (recipient) select 'reader ' || n from generate_series(1, 12) as n`,
  )

  const sent: string[] = []
  const send = async ({ recipient }: { recipient: string }): Promise<void> => {
    sent.push(recipient)
  }
  const [first, second] = await Promise.all([
    sendEmails(database.url, 'worker 1', send),
    sendEmails(database.url, 'worker 2', send),
  ])
  expect(first.sent + second.sent).toBe(12)
  expect(new Set(sent).size).toBe(12)
  expect(sent).toHaveLength(12)

  await client.query(`insert into public.emails (recipient) values ('late reader')`)
  const tooSlow = await sendEmails(database.url, 'worker 1', async () => {
    await client.query(`update public.emails set lease_until = now() - interval '1 s' where sent_at is null`)
    await sendEmails(database.url, 'worker 2', send)
  })
  expect(tooSlow).toEqual({ sent: 0, fencedOff: 1 })
})
