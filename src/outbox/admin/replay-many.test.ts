import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import {
  type AuditEntry,
  auditEntries,
  makeEvents,
  type OutboxState,
  outboxStates,
} from '../../../test/support/outbox-rows.ts'
import { openDatabase } from '../../postgres/database.ts'
import { replay, resumeReplay } from './replay.ts'

const database = useDatabase()
const db = openDatabase({ url: database.url, maxConnections: 4 })
afterAll(async () => db.close())
beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.outbox, leasehold.audit restart identity' })
})

const WHO = { principal: 'ada', reason: 'the broker was down' }
const DEAD = { status: 'DEAD' } as const

async function rows(): Promise<OutboxState[]> {
  return outboxStates(db)
}

async function audit(): Promise<AuditEntry[]> {
  return auditEntries(db)
}

async function countOf(status: string): Promise<number> {
  return (await rows()).filter((row) => row.status === status).length
}

describe('ten thousand dead events by filter', () => {
  const filter = { ...DEAD, type: 'order.paid', error: 'broker' }
  const made = {
    status: 'DEAD',
    error: 'the broker was away',
    key: `'key ' || n % 100`,
    attempts: 25,
  } as const

  beforeEach(async () => {
    await makeEvents(db, 10_000, made)
    await makeEvents(db, 500, { ...made, type: 'order.sent' })
    await makeEvents(db, 500, { ...made, error: 'something else' })
    await makeEvents(db, 500, { status: 'PUBLISHED' })
  })

  it('LIFE-09: the dry run counts them exactly and changes nothing; the replay brings back just them', async () => {
    const before = await rows()
    const counted = await replay(db, { filter, dryRun: true })
    expect(counted).toMatchObject({
      dryRun: true,
      matched: 10_000,
      counts: { published: 0, dead: 10_000 },
      changed: 0,
      changeId: undefined,
    })
    expect(await rows()).toEqual(before)
    expect(await audit()).toEqual([])
    expect(await replay(db, { filter, ...WHO })).toMatchObject({
      matched: 10_000,
      changed: 10_000,
      dryRun: false,
    })
    expect(await countOf('PENDING')).toBe(10_000)
    expect(await countOf('DEAD')).toBe(1_000)
  })

  it('a rate is held within 10 % over the whole and over every second of it, in the order of ids', async () => {
    const rate = 400
    const progress: number[] = []
    const done = await replay(db, {
      filter,
      rate,
      ...WHO,
      onProgress: ({ changed }) => void progress.push(changed),
    })
    expect(progress).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9, 10].map((n) => n * 1_000))
    const due = (await rows()).flatMap((row) =>
      row.status === 'PENDING' && row.due !== null ? [row.due] : [],
    )
    expect(due).toHaveLength(10_000)
    expect(due.toSorted((a, b) => a - b)).toEqual(due)
    const [first = 0, last = 0] = [due[0], due.at(-1)]
    expect(9_999 / (last - first)).toBeGreaterThan(rate * 0.9)
    expect(9_999 / (last - first)).toBeLessThan(rate * 1.1)
    // The last second is not whole.
    const whole = Array.from({ length: Math.floor(last - first) }, (_, second) => {
      const since = first + second
      return due.filter((moment) => moment >= since && moment < since + 1).length
    })
    expect(whole).toHaveLength(24)
    expect(Math.min(...whole)).toBeGreaterThanOrEqual(rate * 0.9)
    expect(Math.max(...whole)).toBeLessThanOrEqual(rate * 1.1)
    expect(done.lastDueAt?.getTime()).toBeCloseTo(last * 1_000, -1)
  })

  it('at any moment only as many events are due as the rate allows', async () => {
    await replay(db, { filter, rate: 1_000, ...WHO })
    const { rows: due } = await db.query<{ seconds: number; count: number }>({
      text: `with start as (select min(available_at) as at from leasehold.outbox where status = 'PENDING')
select seconds, (
  select count(*)::int from leasehold.outbox
  where bucket = 0 and status = 'PENDING'
    and available_at < start.at + seconds * interval '1 second') as count
from start, generate_series(1, 9) as seconds order by seconds`,
    })
    for (const { seconds, count } of due) {
      expect(count).toBeGreaterThan(seconds * 900)
      expect(count).toBeLessThan(seconds * 1_100)
    }
  })

  it('the audit has who, why, what and how much, each batch in an entry that is complete by itself', async () => {
    const done = await replay(db, { filter, rate: 5_000, ...WHO })
    const entries = await audit()
    expect(entries.map(({ details }) => details['changed'])).toEqual([
      1_000, 2_000, 3_000, 4_000, 5_000, 6_000, 7_000, 8_000, 9_000, 10_000, 10_000,
    ])
    for (const { principal, action, target, details } of entries) {
      expect({ principal, action, target }).toEqual({
        principal: 'ada',
        action: 'outbox.replay',
        target: null,
      })
      expect(details).toMatchObject({
        changeId: done.changeId,
        reason: WHO.reason,
        filter,
        matched: 10_000,
        rate: 5_000,
        firstId: '1',
        startedAtSeconds: expect.any(Number),
      })
    }
    const finished = entries.map(({ details }) => details['finishedAtSeconds'] !== null)
    expect(finished.indexOf(true)).toBe(entries.length - 1)
    expect(entries.at(-1)?.details).toMatchObject({ lastId: '10000', changed: 10_000 })
  })

  it('two replays at the same time replay each event once', async () => {
    const both = await Promise.all([
      replay(db, { filter, rate: 2_000, ...WHO }),
      replay(db, { filter, principal: 'grace', reason: 'the same idea' }),
    ])
    expect(both.reduce((sum, { changed }) => sum + changed, 0)).toBe(10_000)
    expect(await countOf('PENDING')).toBe(10_000)
    const last = new Map((await audit()).map(({ principal, details }) => [principal, details['changed']]))
    expect([...last.values()].reduce<number>((sum, changed) => sum + Number(changed), 0)).toBe(10_000)
  })

  it('a replay that is stopped leaves the rest unchanged; resumed, it replays the rest at the same rate, and no event twice', async () => {
    const controller = new AbortController()
    const stopped = await replay(db, {
      filter,
      rate: 500,
      ...WHO,
      signal: controller.signal,
      onProgress: ({ changed }) => {
        if (changed === 3_000) controller.abort()
      },
    })
    expect(stopped).toMatchObject({ changed: 3_000, finished: false })
    expect(await countOf('DEAD')).toBe(8_000)
    // What was replayed dies once more before the replay is resumed: it does not match any more.
    await db.query({
      text: `update leasehold.outbox set status = 'CLAIMED', claimed_at = now(), claimed_by = 'x',
  locked_until = now(), lock_token = lock_token + 1 where id in (7, 8)`,
    })
    await db.query({
      text: `update leasehold.outbox set status = 'DEAD', dead_at = now(), last_error = 'broker', claimed_at = null, claimed_by = null,
  locked_until = null where id in (7, 8)`,
    })
    const resumed = await resumeReplay(db, stopped.changeId ?? '', { principal: 'grace' })
    expect(resumed).toMatchObject({ changed: 7_000, changedBefore: 3_000, matched: 10_000, finished: true })
    expect(
      (await rows())
        .filter(({ status }) => status === 'DEAD')
        .slice(0, 3)
        .map(({ id }) => id),
    ).toEqual(['7', '8', '10001'])
    const due = (await rows()).flatMap(({ due }) => (due === null ? [] : [due]))
    expect(9_997 / ((due.at(-1) ?? 0) - (due[0] ?? 0))).toBeLessThan(550)
    expect((await audit()).at(-1)).toMatchObject({
      principal: 'grace',
      details: { changed: 10_000, reason: WHO.reason, rate: 500 },
    })
    await expect(resumeReplay(db, stopped.changeId ?? '', { principal: 'grace' })).rejects.toThrow(
      /was finished at/,
    )
  })
})
