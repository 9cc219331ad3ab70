import { afterAll, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { usePooler } from '../../test/support/pgbouncer.ts'
import { openDatabase } from '../postgres/index.ts'
import { routeOf } from '../postgres/pooler.ts'
import { examine, type Finding } from './doctor.ts'

const { url } = useDatabase()
const poolers = { transaction: usePooler(url, 'transaction'), session: usePooler(url, 'session') }
const db = openDatabase({ url })
afterAll(async () => db.close())

async function found(urls: {
  readonly databaseUrl: string
  readonly listenUrl?: string
}): Promise<Finding[]> {
  const { findings } = await examine(db, urls)
  return findings.filter(({ check }) => check === 'server-pooler')
}

it('a pooler before the connection that listens is found, with its mode if it can be told', async () => {
  const [transaction] = await found({ databaseUrl: poolers.transaction.urlOf(url) })
  expect(transaction?.text).toContain(
    'leads to a connection pooler in transaction mode: wake-ups do not arrive',
  )
  expect(transaction?.remedy).toContain('--listen-url')
  const [session] = await found({ databaseUrl: poolers.session.urlOf(url) })
  expect(session?.text).toContain('leads to a connection pooler: the rows of a killed process')
})

it('a listenUrl that bypasses the pooler is in order, and so is a database without one', async () => {
  expect(await found({ databaseUrl: poolers.transaction.urlOf(url), listenUrl: url })).toEqual([])
  expect(await found({ databaseUrl: url })).toEqual([])
  expect(await routeOf(url)).toBe('direct')
})
