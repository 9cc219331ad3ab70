/**
 * Executes a request in the database. A GET only reads. Everything else is one transaction: the stored answer of the
 * Idempotency-Key, the change, and its entry in the audit.
 */
import type { Database } from '../../postgres/database.ts'
import type { RoleKind } from '../../postgres/permissions.ts'
import { actingAs, type ActingRoles, roleSql, within } from './acting.ts'
import type { ApiContext } from './api.ts'
import { ofTenant } from './authorize.ts'
import {
  checkIdempotencyKey,
  findAnswer,
  type IdempotentRequest,
  requestHash,
  storeAnswer,
} from './idempotency.ts'
import type { ConnectionLimiter } from './limits.ts'
import type { ReceivedInput } from './request-body.ts'
import type { Caller, IdentifiedCaller, Route } from './route.ts'

export interface Execution {
  readonly db: Database
  readonly connections: ConnectionLimiter
  readonly roles: ActingRoles
  readonly statementTimeoutMs: number
  readonly context: ApiContext
}

export interface AcceptedRequest {
  readonly request: Request
  readonly route: Route
  readonly receiveInput: () => Promise<ReceivedInput>
  readonly caller: IdentifiedCaller
  /** Of the response. */
  readonly headers: Headers
  readonly isCurrent: () => Promise<boolean>
}

export interface Executed {
  readonly status: number
  readonly answer: unknown
  /** Whether it is the stored answer to the same request before. */
  readonly replayed: boolean
}

export async function execute(
  { db: pool, connections, roles, statementTimeoutMs, context }: Execution,
  { request, route, receiveInput, caller, headers, isCurrent }: AcceptedRequest,
): Promise<Executed> {
  const { schema } = context
  const { text, ...given } = await receiveInput()
  const readOnly = route.method === 'GET'
  const role = route.databaseRole ?? roleOf(caller)
  const { tenant, principal } = caller
  const acting = { role, tenant, principal, statementTimeoutMs, readOnly }
  const later: (() => void)[] = []
  const afterwards = (act: () => void): void => void later.push(act)
  const rest = { request, schema, caller, context, headers, afterwards, isCurrent }
  const prefix = await roles.prefix()
  const db = connections.limit(pool, connectionsOf(caller), request)
  if (readOnly) {
    try {
      const answer = await route.run(given, { ...rest, db: actingAs(db, acting, prefix) })
      return { status: route.status, answer, replayed: false }
    } finally {
      await db.close()
    }
  }
  const idempotent = idempotentRequest(schema, { request, route, caller }, text)
  const result = await actingAs(db, { ...acting, role: 'api' }, prefix).transaction(async (tx) => {
    const before = idempotent && (await findAnswer(tx, idempotent))
    if (before !== undefined) return { ...before, replayed: true }
    await tx.query({ text: roleSql(role, prefix) })
    const answer = await route.run(given, { ...rest, db: within(tx) })
    if (idempotent !== undefined) {
      await tx.query({ text: roleSql('api', prefix) })
      await storeAnswer(tx, idempotent, { status: route.status, answer: withoutSecrets(answer, route) })
    }
    return { status: route.status, answer, replayed: false }
  })
  if (!result.replayed) for (const act of later) act()
  return result
}

/** Undefined: the request is executed however often it is sent. That is so of open routes, whose callers are unknown. */
function idempotentRequest(
  schema: string,
  { request, route, caller }: Pick<AcceptedRequest, 'request' | 'route' | 'caller'>,
  text: string,
): IdempotentRequest | undefined {
  const key = request.headers.get('idempotency-key')
  if (key === null || route.method !== 'POST' || route.isOpen) return undefined
  checkIdempotencyKey(key)
  const { principal, role } = caller
  const { pathname } = new URL(request.url)
  return { schema, principal, key, hash: requestHash(`${role} ${route.method}`, pathname, text) }
}

/**
 * Whose connections a request uses. A tenant gives its links any names: its portals have their connections together, so
 * that more names are not more connections.
 */
function connectionsOf({ kind, principal, tenant }: IdentifiedCaller): string {
  return kind === 'portal' ? ofTenant('portal', tenant) : principal
}

/** The database role of a request. A tenant has one role; whether it may write is decided by the key's role. */
function roleOf({ role, tenant }: Caller): RoleKind {
  if (tenant !== null) return 'tenant'
  return role === 'read' ? 'reader' : 'operator'
}

/** What is shown once is not stored. */
function withoutSecrets(answer: unknown, { secrets }: Route): unknown {
  if (typeof answer !== 'object' || answer === null || secrets.length === 0) return answer
  return Object.fromEntries(Object.entries(answer).filter(([name]) => !secrets.includes(name)))
}
