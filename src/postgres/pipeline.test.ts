import fc from 'fast-check'
import { types } from 'pg'
import { afterEach, describe, expect, expectTypeOf, it, vi } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { usePooler } from '../../test/support/pgbouncer.ts'
import { type Proxy, startProxy } from '../../test/support/proxy.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { withCatalogPath } from './catalog-path.ts'
import { openDatabase, type Database, type DatabaseEvent, type DatabaseOptions } from './database.ts'
import { failedStatement } from './pipeline.ts'
import type { Result, Statement } from './queryable.ts'

useQuietProcess()
const database = useDatabase()
const pooler = usePooler(database.url)
const toClose: { close(): Promise<void> }[] = []

function open(options: Partial<DatabaseOptions> = {}): Database {
  const db = openDatabase({ url: database.url, maxConnections: 1, ...options })
  toClose.push(db)
  return db
}

async function openProxy(): Promise<Proxy> {
  const proxy = await startProxy(database.url)
  toClose.unshift(proxy)
  return proxy
}

let tables = 0
async function newTable(db: Database): Promise<string> {
  tables += 1
  await db.query({ text: `create table public.written_${tables} (n int primary key)` })
  return `public.written_${tables}`
}

async function numbersIn(db: Database, table: string): Promise<unknown[]> {
  const { rows } = await db.query({ text: `select n from ${table} order by n` })
  return rows.map(({ n }) => n)
}

async function failureOf(work: Promise<unknown>): Promise<unknown> {
  try {
    await work
  } catch (error) {
    return error
  }
  return expect.fail('It succeeded.')
}

const PID = { text: 'select pg_backend_pid() as pid' }
const PREPARED = { text: 'select name from pg_prepared_statements order by name' }
const FAILS = { name: 'fails', text: 'select 1 / $1::int', values: [0] }

async function preparedOn(db: Database): Promise<unknown[]> {
  return (await db.query(PREPARED)).rows.map(({ name }) => name)
}

afterEach(async () => {
  vi.restoreAllMocks()
  for (const it of toClose.splice(0).toReversed()) await it.close()
})

describe('results', () => {
  it('there is one for each statement, in their order', async () => {
    const db = open()
    const table = await newTable(db)
    const results = await db.pipeline<[{ n: number }, [number, string], object, object]>([
      { name: 'insert', text: `insert into ${table} values ($1), ($2) returning n`, values: [1, 2] },
      { text: `select n, n::text as t from ${table} order by n`, rowMode: 'array' },
      { name: 'none', text: `update ${table} set n = n where n > 2` },
      { text: '' },
    ])
    expectTypeOf(results[1].rows).toEqualTypeOf<[number, string][]>()
    expect(results).toMatchObject([
      { rows: [{ n: 1 }, { n: 2 }], rowCount: 2 },
      { rows: [[1, '1'], [2, '2']], rowCount: 2 }, // prettier-ignore
      { rows: [], rowCount: 0 },
      { rows: [], rowCount: null },
    ])
    expectTypeOf(await db.pipeline([])).toEqualTypeOf<Result<Record<string, unknown>>[]>()
  })

  it('all statements are one round trip and one transaction, and a name is parsed once', async () => {
    const proxy = await openProxy()
    const db = open({ url: proxy.url })
    const xid = { name: 'xid', text: 'select pg_current_xact_id()::text as xid' }
    await db.query(PID)
    const { roundTrips } = proxy
    for (const round of [1, 2]) {
      const [one, two, three] = await db.pipeline([xid, { text: xid.text }, xid])
      expect(proxy.roundTrips).toBe(roundTrips + round)
      expect([two?.rows, three?.rows]).toEqual([one?.rows, one?.rows])
    }
    expect(await preparedOn(db)).toEqual(['xid'])
  })

  it('no statements send nothing', async () => {
    const proxy = await openProxy()
    expect(await open({ url: proxy.url }).pipeline([])).toEqual([])
    expect(proxy.connections).toBe(0)
  })

  it('a name that was prepared by itself is known to a pipeline, and the other way round', async () => {
    const db = open()
    const [a, b] = ['a', 'b'].map((name) => ({ name, text: `select '${name}' as name` }))
    if (a === undefined || b === undefined) return
    await db.query(a)
    expect((await db.pipeline([a, b])).map(({ rows }) => rows)).toEqual([[{ name: 'a' }], [{ name: 'b' }]])
    expect((await db.query(b)).rows).toEqual([{ name: 'b' }])
    expect(await preparedOn(db)).toEqual(['a', 'b'])
  })

  it('thousands of statements are one pipeline', async () => {
    const statements = Array.from({ length: 5_000 }, (_, n) => ({
      name: 'n',
      text: 'select $1::int as n',
      values: [n],
    }))
    const results = await open().pipeline(statements)
    expect(results.map(({ rows }) => rows[0]?.['n'])).toEqual(statements.map((_, n) => n))
  })
})

/** The same statement in a pipeline, with and without a name, and by itself: as objects and as arrays. */
async function results(db: Database, statement: Statement): Promise<{ piped: object[]; alone: object[] }> {
  const piped: object[] = []
  const alone: object[] = []
  for (const each of [statement, { ...statement, rowMode: 'array' as const }]) {
    const named = { ...each, name: `same ${each.text}`.slice(0, 63) }
    const single = await db.query(each)
    for (const result of await db.pipeline([each, named, named])) {
      piped.push({ ...result, _types: undefined })
      alone.push({ ...single, _types: undefined })
    }
  }
  return { piped, alone }
}

class Point {
  readonly #text: string

  constructor(x: number, y: number) {
    this.#text = `(${x},${y})`
  }

  toPostgres(): string {
    return this.#text
  }
}

describe('values', () => {
  it.each([
    'true',
    'null',
    `'text'`,
    `''`,
    `'{}'::json`,
    `'[1, {"a": null}]'::jsonb`,
    `'null'::jsonb`,
    `'\\x00ff'::bytea`,
    '1::int2',
    '2::int4',
    '9007199254740993::int8',
    '1.50::numeric',
    '0.1::float4',
    `'NaN'::float8`,
    '3::oid',
    `'2026-11-15'::date`,
    `'12:30'::time`,
    `'12:30+01'::timetz`,
    `'2026-11-15 12:30:01.123456'::timestamp`,
    `'2026-11-15 12:30:01.5+02'::timestamptz`,
    `'infinity'::timestamptz`,
    `'0044-03-15 BC'::timestamptz`,
    `'1 year 2 days 00:00:01'::interval`,
    `'(1,2)'::point`,
    `'<(1,2),3>'::circle`,
    `'127.0.0.1/8'::inet`,
    `'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid`,
    `'[1,5)'::int4range`,
    `'101'::varbit`,
    `'1.50'::money`,
    `array[1, null, 3]`,
    `array[[1, 2], [3, 4]]`,
    `'{}'::int[]`,
    `array['a', 'b "c"', null]`,
    `array[true, false]`,
    `array['{"a": 1}'::jsonb]`,
    `array['2026-11-15'::timestamptz]`,
    `array['\\x00'::bytea]`,
    `row(1, 'a', null)`,
    '1 as "?column?", 2',
    `1 as a, 2 as a`,
    `1 as "__proto__", 2 as "constructor"`,
    '',
    'n from generate_series(1, 1000) n',
    `repeat('ü', 100000)`,
    `1 where false`,
  ])('of the type of %s are read as those of a single statement', async (expression) => {
    const { piped, alone } = await results(open(), { text: `select ${expression}` })
    expect(piped).toEqual(alone)
  })

  it.each([
    ['text', null],
    ['text', undefined],
    ['text', `'"\\\u{1f600}ü\n`],
    ['bytea', Buffer.from([0, 255, 39])],
    ['bytea', new Uint8Array([0, 1, 2])],
    ['int8', 9_007_199_254_740_993n],
    ['float8', 0.1],
    ['bool', false],
    ['timestamptz', new Date('2026-11-15T12:30:01.123Z')],
    ['timestamptz', new Date('-000044-03-15T00:00:00Z')],
    ['jsonb', { a: [1, null, { b: 'ü' }] }],
    ['json', '"text"'],
    ['int[]', [1, null, 3]],
    ['int[]', []],
    ['text[]', ['a "b"', 'c\\d', '{}', null]],
    ['int[]', [[1, 2], [3, 4]]], // prettier-ignore
    ['timestamptz[]', [new Date('2026-11-15T12:30:01.123Z')]],
    ['bytea[]', [Buffer.from([0, 255])]],
    ['jsonb[]', [{ a: 1 }, { b: [2] }]],
    ['point', new Point(1, 2)],
    ['point[]', [new Point(1, 2)]],
  ] as [string, unknown][])(
    'given for %s are sent as those of a single statement: %s',
    async (type, value) => {
      const { piped, alone } = await results(open(), { text: `select $1::${type} as value`, values: [value] })
      expect(piped).toEqual(alone)
    },
  )

  it('whatever texts, numbers and objects are given, they are sent and read as those of a single statement', async () => {
    const db = open()
    const text =
      'select $1::text as t, $2::float8 as f, $3::jsonb as j, $4::text[] as a, $5::timestamptz as d'
    const clean = fc
      .string({ unit: 'grapheme' })
      .filter((each) => !each.includes('\0') && each.isWellFormed())
    const record = fc.dictionary(clean, fc.oneof(clean, fc.integer(), fc.constant(null)))
    const date = fc.date({ min: new Date('0001-01-01'), max: new Date('9999-01-01'), noInvalidDate: true })
    const values = fc.tuple(clean, fc.double(), record, fc.array(fc.option(clean)), fc.option(date))
    await fc.assert(
      fc.asyncProperty(values, async (given) => {
        const { piped, alone } = await results(db, { text, values: given })
        expect(piped).toEqual(alone)
      }),
      { numRuns: 100 },
    )
  })

  it('the parsers that the user sets are used, and what one throws rejects with the statement written', async () => {
    const db = open()
    const table = await newTable(db)
    const before = types.getTypeParser(types.builtins.INT4)
    try {
      types.setTypeParser(types.builtins.INT4, (each) => {
        if (each === '13') throw new RangeError('unlucky')
        return `int ${each}`
      })
      const insert = { name: 'insert', text: `insert into ${table} values ($1) returning n` }
      const [first] = await db.pipeline([{ ...insert, values: [1] }])
      expect(first?.rows).toEqual([{ n: 'int 1' }])
      const statements = [2, 13, 3].map((n) => ({ ...insert, values: [n] }))
      const error = await failureOf(db.pipeline(statements))
      expect(error).toBeInstanceOf(RangeError)
      expect(failedStatement(error)).toBe(1)
    } finally {
      types.setTypeParser(types.builtins.INT4, before)
    }
    expect(await numbersIn(db, table)).toEqual([1, 2, 3, 13])
  })
})

describe('errors', () => {
  it.each([0, 1, 2])('the error tells that statement %i failed, and nothing is written', async (at) => {
    const db = open()
    const table = await newTable(db)
    const before = await db.query(PID)
    const inserts = ['a', 'b', 'c'].map((name, n): Statement => ({
      name,
      text: `insert into ${table} values (${n})`,
    }))
    const error = await failureOf(db.pipeline(inserts.with(at, FAILS)))
    expect(error).toMatchObject({ name: 'error', code: '22012' })
    expect(failedStatement(error)).toBe(at)
    expect(await numbersIn(db, table)).toEqual([])
    // Those behind the failed one were not parsed, and the failed one was parsed before it failed.
    expect(await preparedOn(db)).toEqual(['a', 'b', 'c'].slice(0, at).concat('fails'))
    await db.pipeline(inserts)
    expect(await numbersIn(db, table)).toEqual([0, 1, 2])
    expect((await db.query(PID)).rows).toEqual(before.rows)
  })

  it('a statement that cannot be parsed is not taken for a prepared one', async () => {
    const db = open()
    const early = { name: 'early', text: 'select * from public.later' }
    for (const _ of [1, 2]) {
      const error = await failureOf(db.pipeline([{ name: 'one', text: 'select 1' }, early]))
      expect(error).toMatchObject({ code: '42P01' })
      expect(failedStatement(error)).toBe(1)
    }
    await db.query({ text: 'create table public.later as select 1 as n' })
    expect((await db.pipeline([early, early])).map(({ rows }) => rows)).toEqual([[{ n: 1 }], [{ n: 1 }]])
  })

  it('where the commit fails, no statement did', async () => {
    const db = open()
    const table = await newTable(db)
    const foreign = 'n int references public.parents deferrable initially deferred'
    await db.query({ text: `create table public.parents (n int primary key)` })
    await db.query({ text: `create table public.children (${foreign})` })
    const error = await failureOf(
      db.pipeline([
        { text: `insert into ${table} values (1)` },
        { text: 'insert into public.children values (1)' },
      ]),
    )
    expect(error).toMatchObject({ code: '23503' })
    expect(failedStatement(error)).toBeUndefined()
    expect(await numbersIn(db, table)).toEqual([])
  })

  it('a value that cannot be sent, or a name of another statement, is refused before anything is sent', async () => {
    const proxy = await openProxy()
    const db = open({ url: proxy.url })
    const before = await db.query(PID)
    const { up } = proxy.bytes
    const circular: unknown[] = []
    circular.push({ circular })
    const one = { name: 'one', text: 'select 1 as n' }
    const refused: [Statement, RegExp][] = [
      [{ text: 'select $1::jsonb', values: [{ circular }] }, /circular/],
      [{ text: 'select $1', values: [{ toPostgres: () => expect.fail('no value') }] }, /no value/],
      [{ name: 'one', text: 'select 2' }, /The name one belongs to another prepared statement/],
    ]
    for (const [statement, message] of refused) {
      const error = await failureOf(db.pipeline([one, statement, one]))
      expect(error).toMatchObject({ message: expect.stringMatching(message) })
      expect(failedStatement(error)).toBe(1)
    }
    expect(proxy.bytes.up).toBe(up)
    expect(await preparedOn(db)).toEqual([])
    expect((await db.query(PID)).rows).toEqual(before.rows)
  })

  it('a statement that its role may not run says which', async () => {
    const db = open()
    const role = `${database.name.slice(0, 40)}_pipeline`
    await db.query({ text: `create role "${role}" login password 'nothing'` })
    const url = new URL(database.url)
    url.username = role
    url.password = 'nothing'
    const weak = open({ url: url.href })
    const writes = { text: `select 'update'` }
    const error = await failureOf(weak.pipeline([writes, { text: 'select from leasehold.outbox' }, writes]))
    expect(error).toMatchObject({ code: 'PERMISSION_DENIED', remedy: expect.stringContaining('_reader') })
    expect(failedStatement(error)).toBe(1)
    await weak.close()
    await db.query({ text: `drop role "${role}"` })
  })

  it('thousands of errors leave no listener on the connection', async () => {
    const warned = vi.spyOn(process, 'emitWarning')
    const db = open()
    for (let n = 0; n < 1_000; n += 1) await failureOf(db.pipeline([FAILS]))
    expect(warned).not.toHaveBeenCalled()
  })

  it('a database whose statements run one after the other tells the same', async () => {
    const db = open()
    const table = await newTable(db)
    const insert = { text: `insert into ${table} values (1) returning n` }
    const error = await failureOf(withCatalogPath(db).pipeline([insert, FAILS, insert]))
    expect(error).toMatchObject({ code: '22012' })
    expect(failedStatement(error)).toBe(1)
    expect(await numbersIn(db, table)).toEqual([])
    expect(await withCatalogPath(db).pipeline([insert])).toMatchObject([{ rows: [{ n: 1 }], rowCount: 1 }])
  })
})

describe('prepared statements', () => {
  const one = { name: 'one', text: 'select $1::int + 1 as answer', values: [1] }
  const two = { name: 'two', text: 'select 2 as answer' }
  const ANSWERS = [[{ answer: 2 }], [{ answer: 2 }]]

  async function answers(db: Database): Promise<object[][]> {
    return (await db.pipeline([one, two])).map(({ rows }) => rows)
  }

  it('with prepare: false no statement is prepared, and all are one round trip', async () => {
    const proxy = await openProxy()
    const db = open({ url: proxy.url, prepare: false })
    await db.query(PID)
    const { roundTrips } = proxy
    expect(await answers(db)).toEqual(ANSWERS)
    expect(proxy.roundTrips).toBe(roundTrips + 1)
    expect(await preparedOn(db)).toEqual([])
  })

  it.each([
    ['unknown to the server connection (26000)', [one, { text: 'deallocate all' }]],
    ['in use on the server connection (42P05)', [{ text: 'prepare two as select 2' }]],
  ])('if a name is %s, all are sent once more, and names are no longer sent', async (_, before) => {
    const events: DatabaseEvent[] = []
    const db = open({ onEvent: (event) => events.push(event) })
    const table = await newTable(db)
    for (const statement of before) await db.query(statement)
    const insert = { name: 'insert', text: `insert into ${table} values (1)` }
    expect(await db.pipeline([insert, one, two])).toMatchObject([
      { rowCount: 1 },
      { rowCount: 1 },
      { rowCount: 1 },
    ])
    expect(await numbersIn(db, table)).toEqual([1])
    expect(events.map(({ type }) => type)).toEqual(['preparedStatementsOff'])
    await db.query({ text: 'deallocate all' })
    expect(await answers(db)).toEqual(ANSWERS)
    expect(await preparedOn(db)).toEqual([])
  })

  it('if a table was altered, all are sent once more without names, and the connection is replaced', async () => {
    const db = open()
    await db.query({ text: 'create table public.altered (a int)' })
    const all = { name: 'all', text: 'select * from public.altered' }
    const insert = { name: 'insert', text: 'insert into public.altered values (1)' }
    await db.pipeline([insert, all])
    const before = await db.query(PID)
    await db.query({ text: 'alter table public.altered add b int' })
    const [, altered] = await db.pipeline([insert, all])
    expect(altered?.rows).toEqual([1, 1].map((a) => ({ a, b: null })))
    expect((await db.query(PID)).rows).not.toEqual(before.rows)
  })

  it('a slow pipeline has its plans discarded, and one without names has not', async () => {
    const proxy = await openProxy()
    const db = open({ url: proxy.url })
    const slow = { text: 'select pg_sleep(0.2)' }
    const table = await newTable(db)
    proxy.cutAt('discard plans')
    const before = await db.query(PID)
    await db.pipeline([{ text: `insert into ${table} values (1)` }, slow])
    expect((await db.query(PID)).rows).toEqual(before.rows)
    await db.pipeline([{ text: `insert into ${table} values (2)` }, { ...slow, name: 'slow' }])
    expect((await db.query(PID)).rows).not.toEqual(before.rows)
    expect(await numbersIn(db, table)).toEqual([1, 2])
  })

  it('the plans of a connection are made anew as it is used: a table may have been empty', async () => {
    const proxy = await openProxy()
    const db = open({ url: proxy.url })
    proxy.cutAt('discard plans')
    const before = await db.query(PID)
    const named = { text: 'select 1', name: 'quick' }
    for (let n = 1; n < 50; n += 1) await db.pipeline([named])
    expect((await db.query(PID)).rows).toEqual(before.rows)
    await db.pipeline([named])
    expect((await db.query(PID)).rows).not.toEqual(before.rows)
  })

  it('behind a pooler that does not know names, pipelines of many clients are transactions', async () => {
    const events: DatabaseEvent[] = []
    const db = open({
      url: pooler.urlOf(database.url),
      maxConnections: 8,
      onEvent: (event) => events.push(event),
    })
    const table = await newTable(open())
    const xid = { name: 'xid', text: 'select pg_current_xact_id()::text as xid' }
    const before = (await pooler.served(database.name)).transactions
    const rounds = Array.from({ length: 200 }, async (_, n) => {
      const insert = { name: 'insert', text: `insert into ${table} values ($1)`, values: [n] }
      const [first, , last] = await db.pipeline([xid, insert, xid])
      expect(first?.rows).toEqual(last?.rows)
      const error = await failureOf(db.pipeline([{ ...insert, values: [-n - 1] }, FAILS]))
      expect([Object(error).code, failedStatement(error)]).toEqual(['22012', 1])
    })
    await Promise.all(rounds)
    expect(await numbersIn(open(), table)).toEqual(rounds.map((_, n) => n))
    expect(events.map(({ type }) => type)).toEqual(['preparedStatementsOff'])
    expect((await pooler.served(database.name)).mode).toBe('transaction')
    expect((await pooler.served(database.name)).transactions - before).toBeGreaterThanOrEqual(
      2 * rounds.length,
    )
  })
})

describe('time and connections', () => {
  it('queryTimeoutMs bounds the whole pipeline, and the statement that runs is cancelled', async () => {
    const events: DatabaseEvent[] = []
    const db = open({
      queryTimeoutMs: 1_000,
      applicationName: 'slow',
      onEvent: (event) => events.push(event),
    })
    const table = await newTable(db)
    const before = await db.query(PID)
    const insert = { name: 'insert', text: `insert into ${table} values (1)` }
    const sleeps = [0.7, 3600].map((seconds) => ({ text: `select pg_sleep(${seconds})` }))
    await expect(db.pipeline([insert, ...sleeps])).rejects.toMatchObject({
      code: 'QUERY_TIMEOUT',
      message: expect.stringMatching(/queryTimeoutMs = 1000 ms: insert; select pg_sleep.0.7.; select/),
    })
    expect(events).toMatchObject([
      { text: expect.stringContaining('; select pg_sleep(3600)'), timeoutMs: 1_000 },
    ])
    const running = `select from pg_stat_activity where datname = current_database() and query like '%3600%' and pid <> pg_backend_pid()`
    await expect.poll(async () => (await db.query({ text: running })).rowCount).toBe(0)
    expect(await numbersIn(db, table)).toEqual([])
    expect((await db.query(PID)).rows).not.toEqual(before.rows)
  })

  it('a session that is ended in the middle rejects as for a single statement, and nothing is written', async () => {
    const events: DatabaseEvent[] = []
    const db = open({ onEvent: (event) => events.push(event) })
    const table = await newTable(db)
    const error = await failureOf(
      db.pipeline([
        { name: 'insert', text: `insert into ${table} values (1)` },
        { text: 'select pg_terminate_backend(pg_backend_pid()), pg_sleep(60)' },
      ]),
    )
    expect(error).toMatchObject({ code: 'DATABASE_UNAVAILABLE', cause: { code: '57P01' } })
    expect(failedStatement(error)).toBeUndefined()
    expect(events).toMatchObject([{ type: 'connectionLost' }])
    expect(await numbersIn(db, table)).toEqual([])
  })

  it('a server that takes no writes is left for the next host', async () => {
    const [one, other] = [await openProxy(), await openProxy()]
    const url = one.url.replace(/(@[^/]*)/, `$1,${new URL(other.url).host}`)
    const db = open({ url })
    const table = await newTable(db)
    const readOnly = { text: `set default_transaction_read_only to on` }
    await db.query(readOnly)
    const error = await failureOf(db.pipeline([PID, { text: `insert into ${table} values (1)` }]))
    expect(error).toMatchObject({ code: '25006' })
    expect(failedStatement(error)).toBe(1)
    await db.pipeline([PID, { text: `insert into ${table} values (1)` }])
    expect(other.connections).toBe(1)
  })

  it('a connection is replaced after maxConnectionAgeMs', async () => {
    const db = open({ maxConnectionAgeMs: 100 })
    const before = await db.pipeline([PID])
    await expect
      .poll(async () => (await db.pipeline([PID]))[0]?.rows, { interval: 1 })
      .not.toEqual(before[0]?.rows)
  })

  it('a database that is closed refuses pipelines', async () => {
    const db = open()
    await db.close()
    await expect(db.pipeline([PID])).rejects.toMatchObject({ code: 'DATABASE_CLOSED' })
  })
})
