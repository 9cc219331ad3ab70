/**
 * Who a request acts as in the database. What a key may see and change is decided there, by roles and policies, and not by
 * conditions that a statement could lack.
 */
import { type Clock, systemClock } from '../../clock.ts'
import { LeaseholdError, messageOf } from '../../errors.ts'
import { type Database, pipelineIn, type TransactionOptions } from '../../postgres/database.ts'
import { quoteIdentifier, quoteLiteral } from '../../postgres/identifiers.ts'
import { DEFAULT_ROLE_PREFIX, type RoleKind } from '../../postgres/permissions.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { requireTenantPolicies } from './tenant-policies.ts'

export interface Acting {
  /** The database role, without its prefix. */
  readonly role: RoleKind
  readonly tenant: string | null
  readonly principal: string
  /** How long a statement may take. */
  readonly statementTimeoutMs: number
  /** Whether it cannot write. */
  readonly readOnly: boolean
}

/** A database all of whose statements run as this role, for this tenant, in transactions of their own. */
export function actingAs(db: Database, acting: Acting, prefix: string): Database {
  const enter = enterSql(acting, prefix)
  const transaction = async <Result>(
    work: (tx: Queryable) => Promise<Result>,
    options: TransactionOptions = {},
  ): Promise<Result> => {
    // The server stops the statement first, and its connection can be used again.
    const queryTimeoutMs = Math.min(options.queryTimeoutMs ?? Infinity, acting.statementTimeoutMs) + 1_000
    return db.transaction(
      async (tx) => {
        await tx.query({ text: enter })
        return work(tx)
      },
      { ...options, queryTimeoutMs },
    )
  }
  return {
    transaction,
    query: async (statement) => transaction(async (tx) => tx.query(statement)),
    pipeline: pipelineIn(transaction),
    // It belongs to somebody else.
    close: async () => Promise.resolve(),
  }
}

/**
 * A database all of whose statements run in this transaction: each of its transactions is a savepoint. What it does is
 * there together with everything else in the transaction, or not at all.
 */
export function within(tx: Queryable): Database {
  let savepoints = 0
  const transaction = async <Result>(work: (tx: Queryable) => Promise<Result>): Promise<Result> => {
    const name = `nested_${(savepoints += 1)}`
    await tx.query({ text: `savepoint ${name}` })
    try {
      const result = await work(tx)
      await tx.query({ text: `release savepoint ${name}` })
      return result
    } catch (error) {
      await tx.query({ text: `rollback to savepoint ${name}` })
      throw error
    }
  }
  return {
    transaction,
    query: async (statement) => tx.query(statement),
    pipeline: pipelineIn(transaction),
    close: async () => Promise.resolve(),
  }
}

/** Statements that take no snapshot, so that a transaction can still choose its isolation level. They end with it. */
function enterSql({ role, tenant, principal, statementTimeoutMs, readOnly }: Acting, prefix: string): string {
  return [
    ...(readOnly ? ['set transaction read only'] : []),
    `set local statement_timeout = ${statementTimeoutMs}`,
    `set local lock_timeout = ${statementTimeoutMs}`,
    // To compile a list of deliveries took 0.3 to 0.5 s, and to read it 0.01 s.
    'set local jit = off',
    // Off, requests of tenants fail. What they may see is decided by policies alone.
    'set local row_security = on',
    `set local leasehold.principal = ${quoteLiteral(principal)}`,
    `set local leasehold.tenant = ${quoteLiteral(tenant ?? '')}`,
    roleSql(role, prefix),
  ].join('; ')
}

export function roleSql(role: RoleKind, prefix: string): string {
  return `set local role ${quoteIdentifier(`${prefix}_${role}`)}`
}

/** What is known of the database roles. */
export interface ActingRoles {
  /** The prefix of their names, found out until that succeeds once. Refuses a login role that cannot become what requests act as. */
  readonly prefix: () => Promise<string>
  /** Refuses a database that does not keep tenants apart, or did not a minute ago. */
  readonly requireTenantPolicies: () => Promise<void>
}

/** Whoever owns the tables can change the policies while the server runs. To look takes about a millisecond. */
const POLICIES_HOLD_MS = 60_000

export function findActingRoles(db: Database, schema: string, clock: Clock = systemClock): ActingRoles {
  const prefix = rememberSuccess(async () => findRolePrefix(db), Infinity, clock)
  const policies = async (): Promise<void> => requireTenantPolicies(db, schema, `${await prefix()}_tenant`)
  return { prefix, requireTenantPolicies: rememberSuccess(policies, POLICIES_HOLD_MS, clock) }
}

/** Calls it until it succeeds, and then returns what it returned for so long. */
function rememberSuccess<Value>(
  find: () => Promise<Value>,
  holdsMs: number,
  clock: Clock,
): () => Promise<Value> {
  let found: Promise<Value> | undefined
  let until = 0
  return async () => {
    if (clock.monotonicNow() >= until) found = undefined
    if (found === undefined) {
      until = clock.monotonicNow() + holdsMs
      const finding = find().catch((error: unknown) => {
        if (found === finding) found = undefined
        throw error
      })
      found = finding
    }
    return found
  }
}

/** A database that acts for the server itself: it knows the keys, the sessions and the answers. */
export async function actingForServer(
  db: Database,
  roles: Pick<ActingRoles, 'prefix'>,
  statementTimeoutMs: number,
): Promise<Database> {
  const acting = { role: 'api', tenant: null, principal: 'api', statementTimeoutMs, readOnly: false } as const
  return actingAs(db, acting, await roles.prefix())
}

/** The prefix of the roles. Refuses a login role that cannot become what requests act as. */
async function findRolePrefix(db: Database): Promise<string> {
  return db.transaction(async (tx) => {
    const { rows } = await tx.query<{ prefix: string; login: string }>({
      text: `select coalesce(nullif(current_setting('leasehold.role_prefix', true), ''), $1) as prefix, current_user as login`,
      values: [DEFAULT_ROLE_PREFIX],
    })
    const { prefix, login } = rows[0] ?? { prefix: DEFAULT_ROLE_PREFIX, login: '<role>' }
    try {
      await tx.query({ text: roleSql('api', prefix) })
      for (const role of ['reader', 'operator', 'producer', 'tenant'] as const)
        await tx.query({ text: roleSql(role, prefix) })
    } catch (error) {
      throw new LeaseholdError(
        'PERMISSION_DENIED',
        `The HTTP API acts as roles that the database role ${login} cannot become: ${messageOf(error)}.`,
        {
          remedy: `Create them with \`leasehold roles\`, and run: GRANT ${prefix}_api TO ${quoteIdentifier(login)};`,
          cause: error,
        },
      )
    }
    return prefix
  })
}
