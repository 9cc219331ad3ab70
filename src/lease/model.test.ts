import { afterAll, describe, expect, it } from 'vitest'

import { useDatabase } from '../../test/support/database.ts'
import { type Breakage, breakDatabase } from '../../test/support/lease-model/broken-database.ts'
import { claimableTable } from '../../test/support/lease-model/claimable-table.ts'
import { compositeTable } from '../../test/support/lease-model/composite-table.ts'
import { liveThrough, startHistory } from '../../test/support/lease-model/history.ts'
import { OBJECTION } from '../../test/support/lease-model/objection.ts'
import { type Operation, WORKERS } from '../../test/support/lease-model/operations.ts'
import { findFailure, repeat } from '../../test/support/lease-model/property.ts'
import { reapedTable } from '../../test/support/lease-model/reaped-table.ts'
import { MAX_ATTEMPTS } from '../../test/support/lease-model/row.ts'
import type { ModelTable } from '../../test/support/lease-model/tables.ts'
import { type Witnessed, witnessed } from '../../test/support/lease-model/witnessed.ts'
import { openWorld, type World } from '../../test/support/lease-model/world.ts'
import { type Database, openDatabase } from '../postgres/database.ts'

const RUNS = 40
/** From so many histories on, each of the CERTAIN events has occurred. */
const TELLING_RUNS = 30

const { url } = useDatabase()
const admin = openDatabase({ url, applicationName: 'model' })
const databases = Array.from({ length: WORKERS }, (_, n) =>
  openDatabase({ url, applicationName: `model worker ${n + 1}`, maxConnections: 3 }),
)
const repeated = repeat(process.env, RUNS)
// On every run: a failure that does not come back has to be traceable too.
process.stdout.write(`lease model: ${repeated.again}\n`)

afterAll(async () => {
  await Promise.all([admin, ...databases].map(async (db) => db.close()))
})

async function worldOf(table: ModelTable, through = (db: Database): Database => db): Promise<World> {
  return openWorld(table, admin, databases.map(through))
}

/** The other events are rarer, or up to the scheduler. */
const CERTAIN = [
  'claimed',
  'renewed',
  'ended',
  'rolledBack',
  'fencedOff',
  'fencedOffByItself',
  'reaped',
] as const

function neverSeen(counts: Witnessed): string[] {
  return CERTAIN.filter((what) => counts[what] === 0)
}

describe.each([
  { kind: 'reaped', tableOf: reapedTable },
  { kind: 'claimable, without a token', tableOf: claimableTable },
  { kind: 'claimable, with a composite key', tableOf: compositeTable },
])('expired leases are $kind', ({ kind, tableOf }) => {
  it('RULE-020-001 RULE-020-003 RULE-020-021 RULE-020-050 D3 D4 D5: whatever workers do at once, a row never has two current holders, its token only grows, a fenced-off write changes nothing, and no row is lost', async () => {
    const world = await worldOf(tableOf(`model of ${kind}`))
    const { counts, witness } = witnessed()

    expect(await findFailure(world, repeated, { witness })).toBeUndefined()

    process.stdout.write(`lease model, ${kind}: ${JSON.stringify(counts)}\n`)
    const telling = repeated.path === undefined && repeated.runs >= TELLING_RUNS
    expect(telling ? neverSeen(counts) : []).toEqual([])
  })

  it('D3: a worker that claims its own reaped row again is fenced off with its old lease', async () => {
    const world = await worldOf(tableOf(`again of ${kind}`))
    const { counts, witness } = witnessed()
    const old = { worker: 0, leasesOf: 0, picks: [1] }
    const operations: Operation[] = [
      { verb: 'insert', rows: 1 },
      { verb: 'claim', worker: 0, limit: 1, from: 'start' },
      { verb: 'expire', rows: [0] },
      { verb: 'reap', worker: 1, limit: 1 },
      { verb: 'claim', worker: 0, limit: 1, from: 'start' },
      { verb: 'renew', ...old, leaseMs: 1_000_000 },
      { verb: 'settle', ...old, as: 'done', within: 'statement' },
      { verb: 'settle', ...old, as: 'retryNow', within: 'commit' },
      { verb: 'release', ...old },
    ]

    let history = await startHistory(world)
    for (const operation of operations) history = await liveThrough(world, history, [operation], witness)
    expect(counts).toMatchObject({ claimed: 2, reaped: 1, fencedOffByItself: 4, ended: 0, renewed: 0 })

    await liveThrough(
      world,
      history,
      [{ verb: 'settle', ...old, picks: [0, 1], as: 'done', within: 'statement' }],
      witness,
    )
    expect(counts).toMatchObject({ ended: 1, fencedOffByItself: 5 })
  })

  it('D4 D5: a row that keeps killing its worker ends as dead', async () => {
    const world = await worldOf(tableOf(`dead of ${kind}`))
    const { counts, witness } = witnessed()

    let history = await liveThrough(world, await startHistory(world), [{ verb: 'insert', rows: 1 }], witness)
    for (let attempt = 1; attempt <= MAX_ATTEMPTS; attempt += 1) {
      const operations: Operation[] = [
        { verb: 'claim', worker: attempt % WORKERS, limit: 1, from: 'start' },
        { verb: 'expire', rows: [0] },
        { verb: 'reap', worker: 0, limit: 1 },
      ]
      for (const operation of operations) history = await liveThrough(world, history, [operation], witness)
    }

    expect([...history.model.values()]).toMatchObject([{ state: 'dead', attempts: MAX_ATTEMPTS }])
    expect(counts).toMatchObject({ claimed: MAX_ATTEMPTS, reaped: MAX_ATTEMPTS, deadByExpiry: 1 })
  })
})

describe('the checker objects to a kernel', () => {
  const writes = /^leasehold_(renew|release|settle)/
  const broken: readonly (Breakage & {
    readonly without: string
    readonly tableOf: (name: string) => ModelTable
    readonly objects: RegExp
  })[] = [
    {
      without: 'RULE-020-003 D3: the token guard',
      tableOf: reapedTable,
      statements: writes,
      piece: '((t."id", t."token") in (select "@k1", "@token" from held)) is true',
      instead: 't."id" in (select "@k1" from held)',
      objects: /not fenced off/,
    },
    {
      without: 'RULE-020-003 D3: the owner guard',
      tableOf: reapedTable,
      statements: writes,
      piece: '(t."owner" = $',
      instead: '(true or t."owner" = $',
      objects: /not fenced off/,
    },
    {
      without: 'RULE-020-003 D3: the guard on an owner that carries the token',
      tableOf: claimableTable,
      statements: writes,
      piece: '((t."id", t."lease_owner") in (select "@k1", "@owner" from held)) is true',
      instead: 't."lease_owner" is not null',
      objects: /not fenced off/,
    },
    {
      without: 'D3: a token that grows',
      tableOf: reapedTable,
      statements: /^leasehold_claim/,
      piece: 'coalesce(t."token", 0) + 1',
      instead: 'coalesce(t."token", 0)',
      objects: /the token did not grow/,
    },
    {
      without: 'D3: a token that outlives the reap',
      tableOf: reapedTable,
      statements: /^leasehold_reap/,
      piece: '"until" = null',
      instead: '"until" = null, "token" = 0',
      objects: /token is 0, not [1-9]/,
    },
    {
      without: 'RULE-020-021: a reaper that spares live leases',
      tableOf: reapedTable,
      statements: /^leasehold_reap/,
      piece: '"until" <= now()',
      instead: '"until" is not null',
      objects: /it was reaped, but the lease is alive/,
    },
    {
      without: 'RULE-020-021: a reaper that clears the lease',
      tableOf: claimableTable,
      statements: /^leasehold_reap/,
      piece: '"lease_until" = null',
      instead: '"lease_until" = t."lease_until"',
      objects: /lease_until is "/,
    },
    {
      without: 'RULE-020-001: a claim that spares live leases',
      tableOf: claimableTable,
      statements: /^leasehold_claim/,
      piece: 'coalesce("lease_until" <= now() or "lease_owner" is null, true)',
      instead: 'true',
      objects: /two current holders/,
    },
    {
      without: 'RULE-020-001: a claim that finds expired leases',
      tableOf: claimableTable,
      statements: /^leasehold_claim/,
      piece: 'coalesce("lease_until" <= now() or "lease_owner" is null, true)',
      instead: '"lease_until" is null',
      objects: /instead of|left rows behind/,
    },
    {
      without: 'D4: an expiry that counts as an attempt',
      tableOf: reapedTable,
      statements: /^leasehold_reap/,
      piece: '"attempts" = coalesce(t."attempts", 0) + 1',
      instead: '"attempts" = t."attempts"',
      objects: /attempts is \d, not \d/,
    },
    {
      without: 'SYNC-05: a renewal of live leases only',
      tableOf: claimableTable,
      statements: /^leasehold_renew/,
      piece: 't."lease_until" > now()',
      instead: 'true',
      objects: /not fenced off: renewed/,
    },
    {
      without: 'RULE-020-003: outcomes that stay with their leases',
      tableOf: reapedTable,
      statements: /^leasehold_settle_retry/,
      piece: `-> t."id"::text ->> 'error'`,
      instead: `-> '1' ->> 'error'`,
      objects: /last_error is /,
    },
  ]

  it.each(broken)('without $without', async ({ tableOf, objects, ...breakage }) => {
    const world = await worldOf(
      tableOf(`broken_${broken.findIndex(({ without }) => without === breakage.without)}`),
      (db) => breakDatabase(db, breakage),
    )
    const failure = await findFailure(
      world,
      { seed: repeated.seed, path: undefined, runs: 500 },
      { oneByOne: true, asFound: true },
    )

    expect(failure?.message.split('\n')[0]).toMatch(objects)
    expect(failure?.message.startsWith(OBJECTION)).toBe(true)
  })
})
