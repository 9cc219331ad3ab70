import { afterAll, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { listEvents, showEvent } from '../outbox/admin/browse.ts'
import { keysHeldUp } from '../outbox/admin/held-up-keys.ts'
import { replay as replayEvents, resumeReplay } from '../outbox/admin/replay.ts'
import { applyRetention } from '../outbox/admin/retention.ts'
import { retryNow } from '../outbox/admin/retry-now.ts'
import { unblock } from '../outbox/admin/unblock.ts'
import { openDatabase } from '../postgres/database.ts'
import { cancel as cancelJobs } from '../sync/admin/cancel.ts'
import { listChunks } from '../sync/admin/chunks.ts'
import { listJobs } from '../sync/admin/jobs.ts'
import { progress, progressOfAll } from '../sync/admin/progress.ts'
import { replay as replayJobs } from '../sync/admin/replay.ts'
import { listDeliveries, showDelivery } from '../webhooks/admin/browse.ts'
import { cancel as cancelDeliveries } from '../webhooks/admin/cancel.ts'
import { summariseEndpoints } from '../webhooks/admin/endpoint-summary.ts'
import { replay as replayDeliveries } from '../webhooks/admin/replay.ts'

const { url } = useDatabase()
const db = openDatabase({ url, maxConnections: 2 })
afterAll(async () => db.close())

const WHO = { principal: 'ada', reason: 'a test' }
const ZERO = 'a\0b'
const HALF = 'a\ud800b'
const TOO_LARGE = '9223372036854775808'
const TOO_MANY = Array.from({ length: 100_001 }, (_, n) => String(n))
const BEFORE_POSTGRESQL = new Date(-100_000_000 * 86_400_000)

/** A call from JavaScript, where no compiler refuses it. */
const unchecked = (value: unknown): never => value as never

const refusal = (message: RegExp): object => ({
  code: 'REQUEST_INVALID',
  message: expect.stringMatching(message),
})

describe('a text that PostgreSQL cannot store is refused, with the field, the value and the remedy:', () => {
  it.each<[string, (text: string) => Promise<unknown>]>([
    ['type', async (type) => listEvents(db, { type })],
    ['orderingKey', async (orderingKey) => replayEvents(db, { filter: { orderingKey }, ...WHO })],
    ['error', async (error) => retryNow(db, { filter: { error }, ...WHO })],
    ['reason', async (reason) => replayEvents(db, { ids: ['1'], principal: 'ada', reason })],
    ['principal', async (principal) => cancelJobs(db, { ids: ['1'], principal, reason: 'x' })],
    ['principal', async (principal) => resumeReplay(db, crypto.randomUUID(), { principal })],
    ['orderingKey', async (orderingKey) => unblock(db, { orderingKey, ...WHO })],
    ['principal', async (principal) => unblock(db, { orderingKey: 'k', principal, reason: 'x' })],
    ['reason', async (reason) => unblock(db, { orderingKey: 'k', principal: 'ada', reason })],
    ['tenant', async (tenant) => listDeliveries(db, { tenant })],
    ['type', async (type) => cancelDeliveries(db, { filter: { type }, ...WHO })],
    ['error', async (error) => replayDeliveries(db, { filter: { error }, ...WHO })],
    ['definition', async (definition) => listJobs(db, { definition })],
    ['matrixId', async (matrixId) => replayJobs(db, { filter: { matrixId }, ...WHO })],
    ['after', async (after) => listChunks(db, '1', { after })],
  ])('%s', async (field, call) => {
    const remedy = 'Give a text without the character \\\\u0000, which PostgreSQL cannot store'
    await expect(call(ZERO)).rejects.toMatchObject(
      refusal(new RegExp(`^${field} is "a\\\\u0000b"\\. ${remedy}`)),
    )
    await expect(call(HALF)).rejects.toMatchObject(
      refusal(new RegExp(`^${field} is "a\\\\ud800b"\\. Give a text without half a surrogate pair`)),
    )
  })
})

describe('an id that no row can have is refused, wherever it is given:', () => {
  it.each<[string, (id: string) => Promise<unknown>]>([
    ['id', async (id) => listEvents(db, { ids: [id] })],
    ['id', async (id) => showEvent(db, id)],
    ['before', async (before) => listEvents(db, {}, { before })],
    ['id', async (id) => listDeliveries(db, { ids: [id] })],
    ['id', async (id) => showDelivery(db, id)],
    ['id', async (id) => cancelDeliveries(db, { ids: [id], ...WHO })],
    ['id', async (id) => listJobs(db, { ids: [id] })],
    ['id', async (id) => cancelJobs(db, { ids: [id], ...WHO })],
    ['jobId', async (id) => progress(db, id)],
    ['jobId', async (id) => listChunks(db, id)],
  ])('%s', async (field, call) => {
    for (const id of [TOO_LARGE, ZERO, HALF, '-1', '']) {
      await expect(call(id)).rejects.toMatchObject(
        refusal(new RegExp(`^${field} is ${escaped(JSON.stringify(id))}\\. Give`)),
      )
    }
  })
})

function escaped(text: string): string {
  return text.replaceAll('\\', '\\\\')
}

describe('more ids than one request may have are refused, and the message does not repeat them:', () => {
  it.each<[string, (ids: readonly string[]) => Promise<unknown>]>([
    ['listing events', async (ids) => listEvents(db, { ids })],
    ['a replay of events', async (ids) => replayEvents(db, { ids, ...WHO })],
    ['a cancel of deliveries', async (ids) => cancelDeliveries(db, { ids, ...WHO })],
    ['a replay of jobs', async (ids) => replayJobs(db, { ids, ...WHO })],
  ])('%s', async (_, call) => {
    await expect(call(TOO_MANY)).rejects.toMatchObject(
      refusal(/^ids has 100,001 ids\. Give at most 100,000, or choose by a filter\.$/),
    )
    await expect(call(unchecked('4711'))).rejects.toMatchObject(
      refusal(/^ids is "4711"\. Give a list of ids/),
    )
  })
})

describe('a number or a time that PostgreSQL cannot compute with is refused:', () => {
  it.each<[string, () => Promise<unknown>, RegExp]>([
    [
      'a time before the year 1',
      async () => listEvents(db, { from: BEFORE_POSTGRESQL }),
      /^from is "-271821-/,
    ],
    [
      'a time that is none',
      async () => listJobs(db, { failedSince: new Date(Number.NaN) }),
      /^failedSince is Invalid Date\. Give a Date/,
    ],
    ['a text as a time', async () => listEvents(db, { to: unchecked('2026-01-01') }), /^to is "2026-01-01"/],
    [
      'a rate at which rows would be due after the end of time',
      async () => replayEvents(db, { ids: ['1'], rate: 1e-12, ...WHO }),
      /^rate is 1e-12\. Give the events per second/,
    ],
    [
      'an infinite rate',
      async () => replayEvents(db, { ids: ['1'], rate: Infinity, ...WHO }),
      /^rate is Infinity\./,
    ],
    ['a limit that is no whole number', async () => keysHeldUp(db, { limit: 1.5 }), /^limit is 1\.5\./],
    [
      'a limit beyond every page',
      async () => summariseEndpoints(db, { limit: 1e12 }),
      /^limit is 1000000000000\./,
    ],
    ['a limit that is no number', async () => progressOfAll(db, { limit: Number.NaN }), /^limit is NaN\./],
    ['a limit as a bigint', async () => listEvents(db, {}, { limit: unchecked(5n) }), /^limit is 5\./],
    [
      'a timeout beyond every timer',
      async () => listEvents(db, {}, { timeoutMs: 2 ** 31 }),
      /^timeoutMs is 2147483648\./,
    ],
    [
      'a period of thousands of years',
      async () => progressOfAll(db, { failedWithinMs: 1e300 }),
      /^failedWithinMs is 1e\+300\./,
    ],
    [
      'a retention of thousands of years',
      async () => applyRetention(db, { publishedMs: 1e300 }),
      /^publishedMs is 1e\+300\..*null to retain them for ever/,
    ],
  ])('%s', async (_, call, message) => {
    await expect(call()).rejects.toMatchObject(refusal(message))
  })
})

describe('a name that is not known is refused, because it would choose every row, or change what was only to be counted:', () => {
  it.each<[string, () => Promise<unknown>, RegExp]>([
    [
      'in a filter of events',
      async () => replayEvents(db, { filter: unchecked({ tpye: 'x' }), ...WHO }),
      /^filter\.tpye is "x"\. .*Did you mean type\?/,
    ],
    [
      'in a filter of deliveries',
      async () => cancelDeliveries(db, { filter: unchecked({ endpiont: 'x' }), ...WHO }),
      /^filter\.endpiont is "x"\. .*Did you mean endpoint\?/,
    ],
    [
      'in a filter of jobs',
      async () => listJobs(db, unchecked({ matrix: 'x' })),
      /^filter\.matrix is "x"\. .*Did you mean matrixId\?/,
    ],
    [
      'in the options of a change',
      async () => replayEvents(db, unchecked({ ids: ['1'], dryrun: true, ...WHO })),
      /^dryrun is true\. .*Did you mean dryRun\?/,
    ],
  ])('%s', async (_, call, message) => {
    await expect(call()).rejects.toMatchObject(refusal(message))
  })
})

it('a long value is shortened in the message', async () => {
  const refused = listEvents(db, { type: `${'x'.repeat(100_000)}\0` })
  await expect(refused).rejects.toMatchObject({
    message: expect.stringMatching(/^type is "x{1,200}…\. Give a text without/),
  })
})
