/**
 * The reasons that the database shows: who has locked the row or its table, who holds an old snapshot, and, if an operator
 * asks for it, what the database answers to a claim. Only that claim changes anything, and it is rolled back.
 */
import { messageOf, sentence } from '../../errors.ts'
import { counted, duration, relative } from '../../figures.ts'
import { isDataError } from '../../lease/data-errors.ts'
import type { TableShape } from '../../lease/inspect.ts'
import { leaseStore } from '../../lease/store.ts'
import { type LeaseTable, tableName } from '../../lease/table.ts'
import type { Database } from '../../postgres/database.ts'
import { isLockConflict, isServerError } from '../../postgres/failures.ts'
import type { Queryable, Statement } from '../../postgres/queryable.ts'
import { heldSnapshots, type SnapshotHolder } from '../../postgres/snapshots.ts'
import { literal, type RowAddress } from '../shown-commands.ts'
import { reason, type Reason } from './reasons.ts'
import type { RowFacts } from './row.ts'

/** A session, or a prepared transaction, that is in the way. Null: this role may not see it. */
type Culprit = Pick<SnapshotHolder, 'pid' | 'gid' | 'since' | 'queryStart' | 'state' | 'application'>

const SESSION = `a.query_start as "queryStart", a.state, nullif(a.application_name, '') as application`

/** `The session 4711 (psql, idle in transaction, its last statement began 3 min ago)` */
function named({ pid, gid, state, application, queryStart }: Culprit, now: Date): string {
  if (gid !== null) return `The prepared transaction ${JSON.stringify(gid)}`
  const statementAt = queryStart && `its last statement began ${relative(queryStart, now)}`
  const details = [application, state, statementAt].filter((part) => part !== null)
  return `The session ${pid}${details.length === 0 ? '' : ` (${details.join(', ')})`}`
}

function forHowLong({ since }: Culprit, now: Date): string {
  return since === null ? '' : ` for ${duration(now.getTime() - since.getTime())}`
}

function openFor(culprit: Culprit, now: Date): string {
  return `in a transaction that has been open${forHowLong(culprit, now)}`
}

/** A reason with who has to end, and how. Of a prepared transaction only its manager knows whether it was to be committed. */
function blaming(culprit: Culprit, code: Reason['code'], text: string): Reason {
  const { pid, gid, since } = culprit
  if (gid !== null) {
    const advice = `ask its transaction manager whether it was to be committed, and run COMMIT PREPARED or ROLLBACK PREPARED ${literal(gid)}`
    return reason(code, `${text}: ${advice}.`, { since, by: gid })
  }
  const command = pid === null ? undefined : `select pg_terminate_backend(${pid})`
  return reason(code, `${text}.`, { since, by: String(pid), command })
}

/**
 * Who has locked the row, so that claims skip it, and reapers if its lease has expired. PostgreSQL stores the lock in the
 * row: `xmax` is the transaction that locks it or is changing it, or several of them together (a multixact). `pg_locks` has
 * the session of every transaction that runs. So the row is not locked to find out, and the transaction stays read-only.
 */
export async function lockOnRow(tx: Queryable, row: RowFacts): Promise<Reason[]> {
  const { xmax, now } = row
  if (xmax === '0') return []
  const skip = row.isLeased && !row.isClaimableNow ? 'reapers skip it' : 'claims skip it'
  const holder = (await holderOf(tx, [xmax])) ?? (await holderOf(tx, await membersOf(tx, xmax)))
  if (holder !== undefined)
    return [
      blaming(
        holder,
        'rowLocked',
        `${named(holder, now)} has locked it ${openFor(holder, now)}, and ${skip}`,
      ),
    ]
  // The lock of a savepoint that was released is that of a transaction which `pg_locks` does not list by this number.
  if (!(await isInProgress(tx, xmax))) return []
  const text = `A transaction that is still open (${xmax}) has locked it, and ${skip}.`
  return [reason('rowLocked', text, { by: xmax })]
}

/** Of these transactions, the one that has been open for the longest time. */
async function holderOf(tx: Queryable, xids: readonly string[]): Promise<Culprit | undefined> {
  if (xids.length === 0) return undefined
  const { rows } = await tx.query<Culprit>({
    text: `/* leasehold:explain locks */
select l.pid, p.gid, coalesce(a.xact_start, p.prepared) as since, ${SESSION}
from pg_locks as l
left join pg_stat_activity as a on a.pid = l.pid
left join pg_prepared_xacts as p on l.pid is null and p.transaction = l.transactionid
where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted
  and l.transactionid = any ($1::text[]::xid[])
order by since limit 1`,
    values: [xids],
  })
  return rows[0]
}

/** The transactions of a multixact; none if the number is not that of one. */
async function membersOf(tx: Queryable, xmax: string): Promise<string[]> {
  const rows = await orNothing<{ xid: string }>(tx, {
    text: 'select xid::text as xid from pg_get_multixact_members($1::text::xid)',
    values: [xmax],
  })
  return rows.map(({ xid }) => xid)
}

async function isInProgress(tx: Queryable, xmax: string): Promise<boolean> {
  const rows = await orNothing<{ status: string | null }>(tx, {
    // A transaction has a number of 64 bits, of which a row has the lower half: of the numbers with this half, it is the
    // nearest to the present one.
    text: `select pg_xact_status((full_xid + 4294967296 * round((next - full_xid) / 4294967296.0)::bigint)::text::xid8) as status
from (
  select next, (next >> 32 << 32) + $1::bigint as full_xid
  from (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as next) as snapshot
) as numbered`,
    values: [xmax],
  })
  return rows[0]?.status === 'in progress'
}

/** For functions that refuse a number which they do not know. */
async function orNothing<Row extends object>(tx: Queryable, query: Statement): Promise<Row[]> {
  await tx.query({ text: 'savepoint leasehold_explain' })
  try {
    const { rows } = await tx.query<Row>(query)
    await tx.query({ text: 'release savepoint leasehold_explain' })
    return rows
  } catch (error) {
    if (!isServerError(error)) throw error
    await tx.query({ text: 'rollback to savepoint leasehold_explain' })
    return []
  }
}

export interface TableLock {
  readonly reason: Reason
  /** Not even reading is possible. */
  readonly isExclusive: boolean
}

/** Lets a read wait for a lock only this long. */
export const LOCK_TIMEOUT_SQL = "set local lock_timeout = '1s'"

/**
 * A lock on the whole table with which no claim can change a row: of ALTER TABLE, CREATE INDEX, VACUUM FULL or LOCK. One
 * that a session still waits for is as much in the way: later requests queue behind it.
 */
export async function lockOnTable(tx: Queryable, table: LeaseTable): Promise<TableLock | undefined> {
  const { rows } = await tx.query<Culprit & { mode: string; granted: boolean; now: Date }>({
    text: `/* leasehold:explain table locks */
select l.pid, p.gid, coalesce(a.xact_start, p.prepared) as since, ${SESSION}, l.mode, l.granted, now() as now
from pg_locks as l
left join pg_stat_activity as a on a.pid = l.pid
left join (
  select x.virtualtransaction, p.gid, p.prepared
  from pg_prepared_xacts as p join pg_locks as x on x.locktype = 'transactionid' and x.transactionid = p.transaction
  where x.pid is null
) as p on l.pid is null and l.virtualtransaction = p.virtualtransaction
where l.locktype = 'relation' and l.pid is distinct from pg_backend_pid()
  and l.database = (select oid from pg_database where datname = current_database())
  and l.relation = (
    select c.oid from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
    where n.nspname = $1 and c.relname = $2
  )
  and l.mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
order by l.mode <> 'AccessExclusiveLock', not l.granted, since limit 1`,
    values: [table.schema, table.name],
  })
  const [found] = rows
  if (found === undefined) return undefined
  const { now, mode, granted, since, pid } = found
  const isExclusive = mode === 'AccessExclusiveLock'
  if (granted) {
    const text = `${named(found, now)} has locked the whole table (${mode}) ${openFor(found, now)}, and every claim and every reaper waits for it`
    return { isExclusive, reason: blaming(found, 'tableLocked', text) }
  }
  const blocker = await blockerOf(tx, pid)
  const behind =
    blocker === undefined
      ? ''
      : `: the ${named(blocker, now).slice('The '.length)} is in its way, ${openFor(blocker, now)}`
  const text = `${named(found, now)} waits to lock the whole table (${mode}), and every claim and every reaper waits behind it${behind}.`
  // Nothing is lost if its statement is cancelled.
  const details = { since, by: String(pid), command: `select pg_cancel_backend(${pid})` }
  return { isExclusive, reason: reason('tableLocked', text, details) }
}

/** Of the sessions that this one waits for, the one whose transaction has been open for the longest time. */
async function blockerOf(tx: Queryable, pid: number | null): Promise<Culprit | undefined> {
  const { rows } = await tx.query<Culprit>({
    text: `/* leasehold:explain blockers */
select a.pid, null as gid, a.xact_start as since, ${SESSION}
from pg_stat_activity as a where a.pid = any (pg_blocking_pids($1::int))
order by since limit 1`,
    values: [pid],
  })
  return rows[0]
}

/** A read had to wait for a lock, and whoever has it cannot be named. */
export function unknownLock(table: LeaseTable): Reason {
  return reason(
    'tableLocked',
    `It could not be read, because another session has locked ${tableName(table)} or a table that belongs to it.`,
  )
}

/**
 * The oldest snapshot that keeps dead versions of rows from being removed, so that claims may read past them. The
 * snapshot of a VACUUM keeps nothing.
 */
export async function oldSnapshot(tx: Queryable, now: Date, olderThanMs: number): Promise<Reason[]> {
  const { holders } = await heldSnapshots(tx)
  const oldest = holders.find(({ heldForMs }) => heldForMs !== null && heldForMs >= olderThanMs)
  if (oldest === undefined) return []
  const text = `${named(oldest, now)} has held a snapshot${forHowLong(oldest, now)}, over ${counted(oldest.transactions ?? 0, 'transaction')}; row versions that died since then cannot be removed, so claims may have to skip them`
  return [blaming(oldest, 'oldSnapshot', text)]
}

/** The lease of a trial, which is never committed. */
const TRIAL_LEASE_MS = 1_000

/**
 * Claims the row in a transaction that is rolled back, and completes its reasons by what the database answers. That runs the
 * constraints and triggers of the table, and a worker that claims at the same moment skips the row.
 */
export async function tryClaim(
  db: Database,
  table: LeaseTable,
  { shape, id, bucket = 0, reasons }: RowAddress & { shape: TableShape; reasons: readonly Reason[] },
): Promise<readonly Reason[]> {
  const rollback = new Error('rolled back on purpose')
  // Another session may have taken or locked the row meanwhile.
  let isClaimed = false
  // A store goes on after an error, but its transaction is over: the first error is that of the row.
  let firstError: unknown
  try {
    await db.transaction(async (tx) => {
      await tx.query({ text: LOCK_TIMEOUT_SQL })
      const recorded: Queryable = {
        async query(statement) {
          const { name: _, ...unnamed } = statement
          return tx.query<never>(unnamed).catch((error: unknown) => {
            firstError ??= error
            throw error
          })
        },
      }
      const store = leaseStore(recorded, table, shape, { owner: 'leasehold explain', bucket })
      const { claimed } = await store.claim({ ids: [id], leaseMs: TRIAL_LEASE_MS, limit: 1 })
      isClaimed = claimed.length > 0
      throw rollback
    })
  } catch (error) {
    if (isDataError(firstError))
      return [refusal(firstError), ...reasons.filter(({ code }) => code !== 'claimable')]
    if (error !== rollback && !isLockConflict(firstError)) throw error
  }
  const succeeded = (text: string): string => `${text} A claim that was rolled back succeeded.`
  return reasons.map((each) =>
    isClaimed && each.code === 'claimable' ? { ...each, text: succeeded(each.text) } : each,
  )
}

function refusal(error: unknown): Reason {
  const { code, constraint } = isServerError(error) ? error : { code: undefined, constraint: undefined }
  const state = code === undefined ? '' : ` (SQLSTATE ${code})`
  const text = `The database refuses to have it claimed${state}: ${sentence(messageOf(error))}`
  return reason('refused', text, { by: constraint })
}
