import { inspect } from 'node:util'
import { afterAll, beforeAll, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useRuntimes } from '../../test/support/runtimes.ts'
import { leaseTable } from '../lease/declaration.ts'
import { openDatabase } from '../postgres/database.ts'
import { SILENT_LOG } from '../worker/context.ts'
import { Events, startRuntime } from '../worker/index.ts'
import { reconciler, type ReconcilerOptions } from './reconciler.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const start = useRuntimes(url)

interface Payment {
  readonly id: string
  readonly status: string
}

const TRANSITIONS = {
  pending: ['detected', 'expired'],
  detected: ['confirmed', 'expired'],
  confirmed: [],
  expired: [],
} as const

const payments = leaseTable({
  table: 'public.payment_requests',
  id: 'id',
  lease: { owner: 'reconcile_lease_owner', until: 'reconcile_lease_until', token: 'reconcile_lease_token' },
  claimable: "status in ('pending', 'detected')",
  order: ['created_at', 'id'],
  onExpiry: 'claimable',
})

type Status = keyof typeof TRANSITIONS

function declare(
  options: Pick<ReconcilerOptions<Payment, Status>, 'observe'> & Partial<ReconcilerOptions<Payment, Status>>,
) {
  return reconciler<Payment, Status>({
    table: payments,
    transitions: TRANSITIONS,
    everyMs: 20,
    settings: { pollMs: 50 },
    ...options,
  })
}

async function rows(): Promise<Record<string, unknown>[]> {
  const { rows: found } = await db.query({
    text: 'select id, status, reconcile_lease_owner as owner, tx_hash from public.payment_requests order by id',
  })
  return found
}

beforeAll(async () =>
  db.query({
    text: `create table public.payment_requests (
        id bigint generated always as identity primary key, status text not null default 'pending',
        created_at timestamptz not null default now(), tx_hash text,
        reconcile_lease_owner text, reconcile_lease_until timestamptz, reconcile_lease_token bigint);
      create index on public.payment_requests (status, reconcile_lease_until, created_at, id);`,
  }),
)
beforeEach(async () => db.query({ text: 'truncate public.payment_requests restart identity' }))
afterAll(async () => db.close())

async function insert(count: number): Promise<void> {
  await db.query({
    text: 'insert into public.payment_requests (status) select $2 from generate_series(1, $1::int)',
    values: [count, 'pending'],
  })
}

describe('a reconciler', () => {
  it('REC-03 REC-04 REC-05: observes open rows until they settle, and clears their leases', async () => {
    await insert(3)
    const seen: string[] = []
    const declared = declare({
      values: { tx_hash: 'text' },
      observe: async ({ id, status }) => {
        seen.push(`${id} ${status}`)
        return status === 'pending' ? 'detected' : { status: 'confirmed', values: { tx_hash: `0x${id}` } }
      },
    })
    const { events } = await start([declared])
    let left = 3
    await events.next(
      'settled',
      ({ outcome, ids }) => outcome === 'detected->confirmed' && (left -= ids.length) === 0,
    )
    expect(await rows()).toEqual(
      ['1', '2', '3'].map((id) => ({ id, status: 'confirmed', owner: null, tx_hash: `0x${id}` })),
    )
    expect(seen.toSorted()).toEqual(['1', '2', '3'].flatMap((id) => [`${id} detected`, `${id} pending`]))
  })

  it('leaves a row open if there is nothing new, and observes it later', async () => {
    await insert(1)
    let observations = 0
    const { events } = await start([
      declare({ observe: async () => ((observations += 1) < 3 ? undefined : 'expired') }),
    ])
    await events.next('settled', ({ outcome }) => outcome === 'pending->expired')
    expect(observations).toBe(3)
    expect(await rows()).toMatchObject([{ status: 'expired', owner: null }])
  })

  it('REC-04, REC-12: never overwrites a status that was changed meanwhile, which counts as skipped, in the summary as well', async () => {
    await insert(1)
    const summaries: Record<string, unknown>[] = []
    const info = (fields: object, message: string): void => {
      if (message === 'reconcile summary') summaries.push({ ...fields })
    }
    const { events, runtime } = await start(
      [
        declare({
          observe: async () => {
            await db.query({ text: "update public.payment_requests set status = 'confirmed'" })
            return 'expired'
          },
        }),
      ],
      { log: { ...SILENT_LOG, info, child: () => SILENT_LOG } },
    )
    await events.next('settled', ({ outcome }) => outcome === 'skipped')
    expect(await rows()).toMatchObject([{ status: 'confirmed', owner: null }])
    await runtime.stop()
    const sum = (name: string): number => summaries.reduce((total, each) => total + Number(each[name]), 0)
    expect(['claimed', 'scanned', 'expired', 'skipped', 'errors'].map(sum)).toEqual([1, 1, 0, 1, 0])
  })

  it('REC-08: a failure of the observer leaves the row open', async () => {
    await insert(1)
    let observations = 0
    const { events } = await start([
      declare({
        observe: async () => {
          observations += 1
          if (observations === 1) throw new Error('no chain')
          return 'detected'
        },
      }),
    ])
    const failed = events.next('failed')
    await events.next('settled', ({ outcome }) => outcome === 'pending->detected')
    expect((await failed).error).toBe('Error: no chain')
  })

  it.each([
    ['confirmed', "observe answered 'confirmed', but from pending only detected, expired are allowed"],
    [{ status: 7 }, 'observe answered { status: 7 }, but must answer with a status'],
    [{ status: 'detected', values: { id: 1 } }, 'a value for id, which `values` does not name'],
  ])('refuses the answer %j before it reaches the database', async (answer, message) => {
    await insert(1)
    const { events } = await start([declare({ observe: async () => answer as never })])
    const { error } = await events.next('failed')
    expect(error).toContain(message)
    expect(await rows()).toMatchObject([{ status: 'pending' }])
  })

  it.each([
    ['in one statement', undefined],
    ['in a transaction of its own', async () => Promise.resolve()],
  ])(
    'REC-18: malformed answers are errors of their rows, never fatal, and other rows are settled %s',
    async (_, onApplied) => {
      const unreadable = {
        get status(): string {
          throw new Error('unreadable')
        },
      }
      const circular: Record<string, unknown> = {}
      circular['of'] = circular
      const hidden = {
        [inspect.custom]: () => {
          throw new Error('hidden')
        },
      }
      const detected = (tx_hash: unknown): unknown => ({ status: 'detected', values: { tx_hash } })
      const malformed: readonly (readonly [unknown, string])[] = [
        [0, 'but must answer with a status'],
        [Number.NaN, 'but must answer with a status'],
        [true, 'but must answer with a status'],
        [10n ** 40n, 'but must answer with a status'],
        [Symbol('detected'), 'but must answer with a status'],
        [() => 'detected', 'but must answer with a status'],
        [['detected'], 'but must answer with a status'],
        [new Map([['status', 'detected']]), 'but must answer with a status'],
        [{}, 'but must answer with a status'],
        [{ status: null }, 'but must answer with a status'],
        [{ status: ['detected'] }, 'but must answer with a status'],
        [{ status: 'detected', values: 7 }, 'but must answer with a status'],
        [{ status: 'detected', values: ['0x1'] }, 'but must answer with a status'],
        [hidden, 'that cannot be shown'],
        [unreadable, 'Error: unreadable'],
        ['', 'but from pending only detected, expired are allowed'],
        ['x'.repeat(100_000), 'but from pending only detected, expired are allowed'],
        ['detected\0', 'but from pending only detected, expired are allowed'],
        ['__proto__', 'but from pending only detected, expired are allowed'],
        ['constructor', 'but from pending only detected, expired are allowed'],
        [{ status: 'detected', values: { toString: 'x' } }, 'a value for toString'],
        [detected('a\0b'), String.raw`values.tx_hash contains the character \u0000`],
        [detected('half \ud83d'), 'values.tx_hash contains half a surrogate pair'],
        [detected(Number.POSITIVE_INFINITY), 'values.tx_hash is Infinity, which is not JSON'],
        [detected(circular), 'part of itself (circular)'],
        [detected(() => 1), 'values.tx_hash is a function, which is not JSON'],
        [detected('x'.repeat(300_000)), 'has 300002 bytes, and at most 262144 are allowed'],
      ]
      const good = malformed.length + 1
      await insert(good)
      const events = new Events()
      const errors = new Map<string, string>()
      const troubles: unknown[] = []
      events.on('failed', ({ id, error }) => void errors.set(id, String(error)))
      events.on('trouble', (event) => void troubles.push(event))
      events.on('dataError', (event) => void troubles.push(event))
      let settled = 0
      const allSettled = events.next('settled', ({ ids }) => (settled += ids.length) === good)
      let answered = 0
      await start(
        [
          declare({
            observe: async ({ id }) => {
              answered += 1
              // What an observer without types may answer.
              const index = Number(id) - 1
              const answer = index < malformed.length ? malformed[index]?.[0] : 'expired'
              return Promise.resolve(answer as never)
            },
            values: { tx_hash: 'text' },
            everyMs: 3_600_000,
            ...(onApplied === undefined ? {} : { onApplied }),
          }),
        ],
        { events },
      )
      await allSettled
      expect(answered).toBe(good)
      const byId = malformed.map(([, message], n) => ({ id: String(n + 1), message }))
      for (const { id, message } of byId) expect(errors.get(id), id).toContain(message)
      expect(Math.max(...[...errors.values()].map((error) => error.length))).toBeLessThan(1_000)
      expect(troubles).toEqual([])
      const left = await db.query<{ status: string; owned: boolean }>({
        text: 'select status, reconcile_lease_owner is not null as owned from public.payment_requests order by id',
      })
      expect(left.rows).toEqual([
        ...malformed.map(() => ({ status: 'pending', owned: false })),
        { status: 'expired', owned: false },
      ])
    },
  )

  it('runs onApplied in the transaction of the transition, and only if it applied', async () => {
    await insert(2)
    await db.query({ text: 'create table if not exists public.told (id bigint, status text)' })
    const { events } = await start([
      declare({
        observe: async ({ id }) => {
          if (id === '2')
            await db.query({ text: "update public.payment_requests set status = 'confirmed' where id = 2" })
          return 'expired'
        },
        onApplied: async (tx, { row, to }) => {
          await tx.query({ text: 'insert into public.told values ($1, $2)', values: [row.id, to] })
        },
      }),
    ])
    const seen = new Set<string>()
    await events.next('settled', ({ outcome }) => seen.add(outcome) && seen.size === 2)
    expect([...seen].toSorted()).toEqual(['pending->expired', 'skipped'])
    expect((await db.query({ text: 'select * from public.told' })).rows).toEqual([
      { id: '1', status: 'expired' },
    ])
    expect(await rows()).toMatchObject([{ status: 'expired' }, { status: 'confirmed' }])
  })

  it('rolls the transition back when onApplied throws', async () => {
    await insert(1)
    let tries = 0
    const { events } = await start([
      declare({
        observe: async () => 'expired',
        onApplied: async () => {
          tries += 1
          if (tries === 1) throw new Error('no outbox')
          return Promise.resolve()
        },
      }),
    ])
    await events.next('failed')
    expect(await rows()).toMatchObject([{ status: 'pending' }])
    await events.next('settled', ({ outcome }) => outcome === 'pending->expired')
    expect(tries).toBe(2)
  })
})

describe('REC-13: a declaration that cannot work', () => {
  it.each([
    [{ transitions: { pending: ['paid'] } }, 'leads to paid, which has no entry'],
    [{ transitions: { pending: [] } }, 'transitions leads nowhere'],
    [{ transitions: { pending: ['pending'] } }, 'leads to itself'],
    [{ observe: 7 }, 'observe must be a function'],
    [{ everyMs: 0 }, 'everyMs is 0'],
    [{ table: {} }, 'made with leaseTable()'],
    [{ obseve: 7 }, 'unknown option obseve (did you mean observe?)'],
    [{ settings: { concurency: 7 } }, 'unknown option concurency (did you mean concurrency?)'],
    [{ status: 's\0' }, 'status contains'],
    [{ status: 's'.repeat(64) }, 'longer than 63 bytes'],
    [{ status: '\ud83d' }, 'status contains half a surrogate pair'],
    [{ values: { 'v\0': 'text' } }, 'values contains'],
    [{ values: { ['v'.repeat(64)]: 'text' } }, 'longer than 63 bytes'],
    [{ everyMs: 1e300 }, 'everyMs is 1e+300'],
    [{ transitions: { 'pending\0': ['paid'], paid: [] } }, 'contains the character'],
    [{ transitions: { pending: ['toString'] } }, 'leads to toString, which has no entry'],
  ])('%j is refused', (broken, message) => {
    const options = { table: payments, transitions: TRANSITIONS, observe: async () => undefined, ...broken }
    expect(() => reconciler(options as never)).toThrow(message)
  })
})

describe('an observer', () => {
  it.each([
    [
      'throws before it is asynchronous',
      () => {
        throw new Error('no chain')
      },
    ],
    ['never comes back', async () => new Promise<never>(() => undefined)],
  ])('an observer that %s costs its row one observation, and no slot', async (_, misbehave) => {
    await insert(6)
    let bad = 3
    const declared = declare({
      observe: (async () => {
        if ((bad -= 1) >= 0) return misbehave()
        return 'expired'
      }) as never,
      timeoutMs: 100,
      settings: { pollMs: 50, concurrency: 1 },
    })
    const { events } = await start([declared])
    const failed = events.next('failed')
    let left = 6
    await events.next(
      'settled',
      ({ outcome, ids }) => outcome === 'pending->expired' && (left -= ids.length) === 0,
    )
    expect(String((await failed).error)).toMatch(/no chain|nothing was observed within 100 ms/)
  })

  it('an observer that throws after its timeout, outside a promise, does not end the process', async () => {
    await insert(1)
    let observations = 0
    const observe = (() => {
      observations += 1
      if (observations < 3) throw new Error('no chain')
      return Promise.resolve('expired')
    }) as never
    const { events } = await start([declare({ observe, timeoutMs: 10, everyMs: 50 })])
    await events.next('settled', ({ outcome }) => outcome === 'pending->expired')
    expect(observations).toBe(3)
  })
})

describe('REC-11, REC-12: a reconciler that is embedded in a process', () => {
  type Line = Readonly<Record<string, unknown>>

  function recorder() {
    const lines: Line[] = []
    const at =
      (level: string) =>
      (fields: object, msg: string): void =>
        void lines.push({ level, ...fields, msg })
    const log = {
      debug: at('debug'),
      info: at('info'),
      warn: at('warn'),
      error: at('error'),
      child: () => log,
    }
    return { lines, log }
  }

  it('logs its start and its stop with worker id, poll interval and lease duration, and a summary, of an empty cycle at debug level', async () => {
    await insert(1)
    const { lines, log } = recorder()
    const { runtime, events } = await start(
      [
        declare({
          observe: async () => Promise.resolve('expired'),
          settings: { pollMs: 20, leaseMs: 20_000 },
        }),
      ],
      { log },
    )
    await events.next('settled')
    const ofLevel = (level: string): Line[] => lines.filter((line) => line['level'] === level)
    const empty = { msg: 'reconcile summary', claimed: 0, scanned: 0, expired: 0, skipped: 0, errors: 0 }
    await expect.poll(() => ofLevel('debug')).toContainEqual(expect.objectContaining(empty))
    await runtime.stop()
    const of = {
      worker: runtime.id,
      role: 'reconcile',
      table: 'public.payment_requests',
      pollMs: 20,
      leaseMs: 20_000,
    }
    const infos = ofLevel('info')
    expect(infos.at(0)).toMatchObject({ ...of, msg: 'started' })
    expect(infos.at(-1)).toMatchObject({ ...of, msg: 'stopped' })
    const summaries = infos.filter(({ msg }) => msg === 'reconcile summary')
    const sum = (name: string): number => summaries.reduce((total, each) => total + Number(each[name]), 0)
    expect(['claimed', 'scanned', 'expired', 'skipped', 'errors'].map(sum)).toEqual([1, 1, 1, 0, 0])
  })

  it('writes them to stderr where no log was given', async () => {
    await insert(1)
    const written: string[] = []
    const stderr = vi.spyOn(process.stderr, 'write').mockImplementation((text) => {
      written.push(String(text))
      return true
    })
    onTestFinished(() => stderr.mockRestore())
    const runtime = await startRuntime({
      databaseUrl: url,
      heartbeat: 'inline',
      workers: [declare({ observe: async () => Promise.resolve('expired') })],
    })
    await runtime.events.next('settled')
    await runtime.stop()
    const messages = written.flatMap((line) => /info leasehold: ([a-z ]+) \(/.exec(line)?.[1] ?? [])
    // A row that is claimed and settled in two intervals is in two summaries.
    expect([...new Set(messages)]).toEqual(['started', 'reconcile summary', 'stopped'])
  })
})
