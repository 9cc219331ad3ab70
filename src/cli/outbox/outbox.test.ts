import { beforeEach, describe, expect, it } from 'vitest'
import { useCommandLine } from '../../../test/support/command-line.ts'
import { openLeaseStore } from '../../lease/store.ts'
import { replay } from '../../outbox/admin/replay.ts'
import { outboxTable } from '../../outbox/table.ts'
import { makeEvents } from '../../../test/support/outbox-rows.ts'

const { db, call: outbox, json } = useCommandLine('outbox')
beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.outbox, leasehold.audit restart identity' })
})

const EVENT_ID = '0190b3a0-0000-7000-8000-000000000001'

async function row(id: number): Promise<Record<string, unknown> | undefined> {
  const text = 'select * from leasehold.outbox where id = $1'
  return (await db.query({ text, values: [id] })).rows[0]
}

async function audit(): Promise<Record<string, unknown>[]> {
  const text = 'select principal, action, target, details from leasehold.audit order by id'
  return (await db.query({ text })).rows
}

describe('enqueue', () => {
  it('enqueue writes an event with every field that can be given', async () => {
    const given = [
      '--key',
      'c 1',
      '--header',
      'a=1',
      '--header',
      'b=x=y',
      '--available-at',
      '2030-01-01T00:00:00Z',
    ]
    const { code, stdout } = await outbox([
      'enqueue',
      'order.paid',
      '{"id": 7}',
      ...given,
      '--event-id',
      EVENT_ID,
    ])
    expect(code).toBe(0)
    expect(stdout).toBe(`Written: event 1, order.paid, with the event id ${EVENT_ID}.\n`)
    expect(await row(1)).toMatchObject({
      event_type: 'order.paid',
      payload: { id: 7 },
      ordering_key: 'c 1',
      headers: { a: '1', b: 'x=y' },
      available_at: new Date('2030-01-01T00:00:00Z'),
      event_id: EVENT_ID,
    })
  })

  it('an event id that is there already writes nothing, and says so', async () => {
    const args = ['enqueue', 'order.paid', '--event-id', EVENT_ID]
    expect(await json(args)).toEqual({ id: '1', eventId: EVENT_ID, duplicate: false })
    expect(await json(args)).toEqual({ id: '1', eventId: EVENT_ID, duplicate: true })
    expect((await outbox(args)).stdout).toBe(
      `Nothing written: event 1 has the event id ${EVENT_ID} already.\n`,
    )
  })

  it('enqueue - reads the payload from stdin, and a payload can be any JSON', async () => {
    expect((await outbox(['enqueue', 'a', '-'], { input: '[1, "two"]\n' })).code).toBe(0)
    expect((await outbox(['enqueue', 'a', 'null'])).code).toBe(0)
    expect(await row(1)).toMatchObject({ payload: [1, 'two'] })
    expect(await row(2)).toMatchObject({ payload: null })
  })

  it.each([
    [['a', '{x}'], /the payload is not JSON: \{x\}/],
    [['a', '--header', 'novalue'], /--header number 1 is not understood: give it as name=value/],
    [['a', '--available-at', 'tomorrow'], /--available-at is "tomorrow": give a moment such as 2026-/],
    [['a', '--available-at', '2026-02-31T00:00:00X'], /--available-at is/],
    [['a', '--event-id', '17'], /--event-id is "17": give a uuid/],
    [[' '], /<type> is " "/],
    [[], /missing required argument 'type'/],
  ])('the arguments %j are refused as wrong usage', async (args, message) => {
    const { code, stderr, stdout } = await outbox(['enqueue', ...args])
    expect({ code, stdout }).toEqual({ code: 2, stdout: '' })
    expect(stderr).toMatch(message)
    expect(await row(1)).toBeUndefined()
  })
})

describe('list', () => {
  it('list prints a table, newest first, with what matters in each state', async () => {
    await makeEvents(db, 1, {
      status: 'DEAD',
      error: 'first line\nsecond \u001b[31mline',
      attempts: 25,
      agoMs: 7_200_000,
    })
    await makeEvents(db, 1, { status: 'PUBLISHED', agoMs: 180_000 })
    await makeEvents(db, 1, { status: 'CLAIMED', key: `'customer 1'` })
    await makeEvents(db, 1, { type: 'order.sent' })
    const { code, stdout } = await outbox(['list'])
    expect(code).toBe(0)
    expect(stdout.split('\n').map((line) => line.replaceAll(/ {2,}/g, ' | '))).toEqual([
      'ID | STATUS | TYPE | KEY | FAILED | WRITTEN | DETAILS',
      expect.stringMatching(/^4 \| PENDING \| order\.sent \| - \| 0 \| \d+ s ago$/),
      expect.stringMatching(/^3 \| CLAIMED \| order\.paid \| customer 1 \| 0 \| \d+ s ago \| by test$/),
      '2 | PUBLISHED | order.paid | - | 0 | 3 min ago | published 3 min ago',
      '1 | DEAD | order.paid | - | 25 | 2 h ago | first line second [31mline',
      '',
    ])
  })

  it('the list is cut to the width of the terminal', async () => {
    await makeEvents(db, 2, { status: 'DEAD', error: 'x'.repeat(300), key: `repeat('k', 100)` })
    const { stdout } = await outbox(['list'], { width: 90 })
    const lines = stdout.trimEnd().split('\n')
    expect(Math.max(...lines.map(({ length }) => length))).toBeLessThanOrEqual(90)
    expect(lines[1]).toMatch(/k… .*x…$/)
  })

  it('the list continues page by page, and every event is on one page', async () => {
    const ids = await makeEvents(db, 12)
    const seen: string[] = []
    let before: string | null = null
    do {
      const page = await json(['list', '--limit', '5', ...(before === null ? [] : ['--before', before])])
      // What `--json` promises.
      const { events, next } = page as { events: { id: string }[]; next: string | null }
      seen.push(...events.map(({ id }) => id))
      before = next
    } while (before !== null)
    expect(seen).toEqual(ids.toReversed())
    expect((await outbox(['list', '--limit', '5'])).stdout).toContain(
      'There are more: --before 8 shows the next ones.',
    )
  })

  it('list filters by state, type, key, time and error', async () => {
    await makeEvents(db, 1, { status: 'DEAD', error: 'Timeout', key: `'a'`, agoMs: 7_200_000 })
    await makeEvents(db, 1, { status: 'PUBLISHED', type: 'b' })
    await makeEvents(db, 1, { agoMs: 60_000 })
    const found = async (...args: string[]): Promise<string[]> => {
      const { events } = (await json(['list', ...args])) as { events: { id: string }[] }
      return events.map(({ id }) => id)
    }
    expect(await found('--status', 'dead,pending')).toEqual(['3', '1'])
    expect(await found('--type', 'b')).toEqual(['2'])
    expect(await found('--key', 'a')).toEqual(['1'])
    expect(await found('--error', 'timeout')).toEqual(['1'])
    expect(await found('--from', '1h')).toEqual(['3', '2'])
    expect(await found('--to', '1h')).toEqual(['1'])
    expect(await found('--from', '5m', '--to', '30s')).toEqual(['3'])
    expect(await found('--status', 'dead', '--type', 'b')).toEqual([])
    expect((await outbox(['list', '--type', 'nothing'])).stdout).toBe('No such events.\n')
  })

  it('an empty outbox is empty', async () => {
    expect((await outbox(['list'])).stdout).toBe('The outbox is empty.\n')
    expect(await json(['list'])).toEqual({ events: [], next: null })
  })

  it.each([
    [
      ['--status', 'dead,lost'],
      /--status is "dead,lost": give one or more of pending, claimed, published, dead/,
    ],
    [['--limit', '0'], /--limit is "0": give a whole number from 1 to 1000/],
    [['--limit', '2000'], /--limit is "2000"/],
    [['--before', 'x'], /--before is "x": give the id of an event/],
    [['--from', 'yesterday'], /--from is "yesterday": .*how long ago it was: 90s, 15m, 2h, 7d/],
    [['--from', '1h', '--to', '2h'], /--to is "2h": it must be later than --from/],
    [['--type', ''], /--type is ""/],
    [['--unknown'], /unknown option '--unknown'/],
  ])('the arguments %j are refused as wrong usage', async (args, message) => {
    const { code, stderr, stdout } = await outbox(['list', ...args])
    expect({ code, stdout }).toEqual({ code: 2, stdout: '' })
    expect(stderr).toMatch(message)
  })
})

describe('show', () => {
  it('show prints everything about an event, by id and by event id', async () => {
    await outbox([
      'enqueue',
      'order.paid',
      '{"text": "\\u001b[2J\u009b"}',
      '--event-id',
      EVENT_ID,
      '--header',
      'a=b',
    ])
    const byId = await outbox(['show', '1'])
    expect(byId.code).toBe(0)
    expect(byId.stdout).toMatch(
      /^Event {9}1\nEvent id {6}0190b3a0-.*\nType {10}order\.paid\nKey {11}none\nStatus {8}PENDING\n/,
    )
    expect(byId.stdout).toMatch(/^Written {7}\d{4}-\d\d-\d\dT.*Z \(\d+ s ago\)$/m)
    expect(byId.stdout).toContain('Headers\n  {\n    "a": "b"\n  }\n')
    expect(byId.stdout).toContain(String.raw`"text": "\u001b[2J\u009b"`)
    const byEventId = await outbox(['show', EVENT_ID.toUpperCase()])
    const timeless = (text: string): string => text.replaceAll(/\(.* ago\)/g, '')
    expect(timeless(byEventId.stdout)).toBe(timeless(byId.stdout))
    expect(await json(['show', '1'])).toMatchObject({
      id: '1',
      eventId: EVENT_ID,
      type: 'order.paid',
      status: 'PENDING',
      headers: { a: 'b' },
      token: '0',
      waitsFor: null,
    })
  })

  it('show prints the attempts of an event, and what operators did, as a table', async () => {
    await makeEvents(db, 1)
    const store = await openLeaseStore(db, outboxTable(), { owner: 'relay-a' })
    const { claimed } = await store.claim({ limit: 1, leaseMs: 60_000 })
    await store.settle(
      'dead',
      claimed.map(({ lease }) => lease),
      { args: [{ error: 'no such topic' }] },
    )
    await replay(db, { ids: ['1'], principal: 'ada', reason: 'created the topic' })
    const { stdout } = await outbox(['show', '1'])
    expect(stdout).toMatch(/^ATTEMPT +TOKEN +RESULT +CLAIMED +ENDED +BY +DETAILS$/m)
    expect(stdout).toMatch(/^1 +\d+ +dead +\S+ \S+ ago +\S+ \S+ ago +relay-a +no such topic$/m)
    expect(stdout).toMatch(/^- +- +replayed +- +\S+ \S+ ago +ada +created the topic$/m)
    expect(await json(['show', '1'])).toMatchObject({
      history: [
        { outcome: 'dead', token: expect.stringMatching(/^\d+$/), owner: 'relay-a' },
        { outcome: 'replayed', by: 'ada' },
      ],
    })
  })

  it('show prints what an event waits for', async () => {
    await makeEvents(db, 1, { status: 'DEAD', parked: true, key: `'k'`, error: 'no such receiver' })
    await makeEvents(db, 2, { key: `'k'` })
    expect((await outbox(['show', '3'])).stdout).toContain(
      'Waits for     event 1 of the same key, which is parked: no such receiver\n',
    )
    expect((await outbox(['show', '1'])).stdout).toContain('DEAD, parked: its key waits for an operator')
  })

  it('an event that is not there is an error, and what cannot be an id is wrongly called', async () => {
    const missing = await outbox(['show', '99'])
    expect(missing).toMatchObject({ code: 1, stdout: '' })
    expect(missing.stderr).toMatch(/EVENT_NOT_FOUND: No event has the id 99\..*outbox list/)
    expect(await outbox(['show', '9x'])).toMatchObject({ code: 2, stdout: '' })
  })
})

describe('unblock', () => {
  it('retry makes a pending event due now, and says why another was not retried, with exit code 1', async () => {
    await outbox(['enqueue', 'order.paid', '--available-at', '2100-01-01T00:00:00Z'])
    await outbox(['enqueue', 'order.paid'])
    const { code, stdout } = await outbox(['retry', '1', '2', '--reason', 'now, please'])
    expect(code).toBe(1)
    expect(stdout).toMatch(/^Retried 1 event\. It is recorded in the audit as [0-9a-f-]{36}\.\n/)
    expect(stdout).toContain(
      '2 was not retried: it is due already; `leasehold outbox show 2` shows what it waits for.\n',
    )
    expect((await outbox(['show', '1'])).stdout).toMatch(/Due .* \(\d+ s ago\)/)
    expect(await audit()).toMatchObject([{ action: 'outbox.retry', target: null }])
  })

  it('unblock lets a parked key continue without its event, or with it first', async () => {
    await makeEvents(db, 1, { status: 'DEAD', parked: true, key: `'k 1'` })
    await makeEvents(db, 1, { status: 'DEAD', parked: true, key: `'k 2'` })
    const without = await outbox(['unblock', 'k 1', '--reason', 'it is broken', '--principal', 'ada'])
    expect(without).toMatchObject({ code: 0, stderr: '' })
    expect(without.stdout).toMatch(/^The key k 1 continues without its 1 parked event\. It stays dead/)
    expect(await json(['unblock', 'k 2', '--replay', '--reason', 'it is mended'])).toEqual({
      orderingKey: 'k 2',
      replay: true,
      parked: 1,
      failing: 0,
    })
    expect(await row(1)).toMatchObject({ status: 'DEAD', parked: false })
    expect(await row(2)).toMatchObject({ status: 'PENDING', parked: false })
    expect(await audit()).toMatchObject([
      { principal: 'ada', action: 'outbox.unblock', target: 'k 1', details: { reason: 'it is broken' } },
      { principal: 'the account', target: 'k 2', details: { reason: 'it is mended', replay: true } },
    ])
  })

  it('a key that nothing holds up is told so, with exit code 1', async () => {
    const { code, stderr } = await outbox(['unblock', 'k', '--reason', 'x'])
    expect(code).toBe(1)
    expect(stderr).toContain('STATE_CONFLICT: Nothing holds up the key "k", so that nothing was changed.')
  })

  it('keys lists the keys that are held up, with the event that holds each up', async () => {
    expect((await outbox(['keys'])).stdout).toBe('No ordering key is held up.\n')
    await makeEvents(db, 1, { status: 'DEAD', parked: true, key: `'k 1'` })
    await makeEvents(db, 1, { status: 'DEAD', parked: true, key: `'k 2'` })
    const { stdout } = await outbox(['keys', '--limit', '1'])
    expect(stdout).toMatch(/^KEY +STATE +EVENT .*\nk [12] +parked +[12] .*\nThere are more: --limit/)
    expect(await json(['keys'])).toMatchObject({ items: [{ waiting: 0 }, { waiting: 0 }], more: false })
  })

  it('unblock needs a reason', async () => {
    const { code, stderr } = await outbox(['unblock', 'k'])
    expect(code).toBe(2)
    expect(stderr).toContain('--reason is missing')
  })
})

it('a schema without an outbox is told what to do', async () => {
  const { code, stderr } = await outbox(['list', '--schema', 'nowhere'])
  expect(code).toBe(1)
  expect(stderr).toBe(
    'leasehold: SETTING_INVALID: The schema nowhere has no outbox yet. Run `leasehold migrate`, or name another schema with --schema.\n',
  )
})
