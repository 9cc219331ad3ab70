/** Turns PostgreSQL's refusals into errors that name the database role, the object and the GRANT that is missing. */
import { LeaseholdError, isLeaseholdError } from '../errors.ts'
import { isServerError } from './failures.ts'
import { quoteIdentifier, quoteQualified } from './identifiers.ts'

/** The roles that `migrations/006_roles.sql` creates, without their prefix. */
export const ROLE_KINDS = ['producer', 'worker', 'dispatcher', 'reader', 'operator', 'tenant', 'api'] as const

export type RoleKind = (typeof ROLE_KINDS)[number]

/** What a statement needs: one of these roles, or to be run by the owner of the schema. */
export type NeededRole = RoleKind | 'owner'

export const DEFAULT_ROLE_PREFIX = 'leasehold'

/** Whether PostgreSQL refused a statement because its role lacks a privilege: insufficient_privilege. */
export function isPermissionDenied(error: unknown): boolean {
  return isLeaseholdError(error, 'PERMISSION_DENIED') || isRefusal(error)
}

function isRefusal(error: unknown): error is Error {
  return isServerError(error) && error.code === '42501'
}

export interface DeniedStatement {
  readonly text: string
  /** The role of the connection, where it is known. */
  readonly role: string | undefined
  /** The role that the statement needs. Default: reader or operator, depending on whether it writes. */
  readonly needs?: NeededRole | undefined
}

/** The same refusal as an error that names the role, the object and the GRANT. Any other error is returned unchanged. */
export function explainRefusal(error: unknown, { text, role, needs }: DeniedStatement): unknown {
  const cause = isLeaseholdError(error, 'PERMISSION_DENIED') ? error.cause : error
  if (!isRefusal(cause)) return error
  const known = role ?? roleNamedBy(error)
  const who = known === undefined ? 'The database role of this connection' : `The database role ${known}`
  return new LeaseholdError('PERMISSION_DENIED', `${who} lacks a privilege: ${cause.message}.`, {
    remedy: remedyFor(cause.message, text, known === undefined ? '<role>' : quoteIdentifier(known), needs),
    cause,
  })
}

/** Our own database has explained it already, and knew the role. */
function roleNamedBy(error: unknown): string | undefined {
  return error instanceof Error
    ? /^The database role (.+?) lacks a privilege: /.exec(error.message)?.[1]
    : undefined
}

const OWN_OBJECT =
  /\b(?:audit|workers|settings|migrations|outbox|inbox|webhook_\w+|sync_\w+|wake|may_wake|notify_workers|enqueue(?:_events?)?|find_event|send_webhooks?|new_event_id|bucket_count|citus_buckets)\b/

/** PostgreSQL names the object in the message only, and without its schema. The statement has both. */
function remedyFor(message: string, text: string, grantee: string, needs: NeededRole | undefined): string {
  const [, database] = /\bdatabase "(.+)"$/.exec(message) ?? []
  const privilege = message.includes('temporary tables') ? 'TEMPORARY' : 'CONNECT'
  if (database !== undefined)
    return `Run: GRANT ${privilege} ON DATABASE ${quoteIdentifier(database)} TO ${grantee};`
  const [, kind = '', object = ''] = /\b(schema|table) (.+)$/.exec(message) ?? []
  const names = qualifiedNames(text)
  const isOwn =
    kind === 'schema'
      ? !names.some(({ schema, name }) => schema === object && !OWN_OBJECT.test(name))
      : OWN_OBJECT.test(message)
  if (isOwn && needs === 'owner') return 'Run it as the owner of the schema.'
  if (isOwn) {
    // Of what the workers read, a dispatcher alone reads the endpoints whole.
    const asWorker = needs === 'worker' && message.endsWith(' webhook_endpoints') ? 'dispatcher' : needs
    const needed =
      asWorker ?? (/\b(?:insert\s+into|update|delete\s+from)\b/i.test(text) ? 'operator' : 'reader')
    // Which prefix was chosen can only be asked in a session that works, and this one has just been refused.
    return `Run: GRANT ${DEFAULT_ROLE_PREFIX}_${needed} TO ${grantee}; (if your roles have another prefix: <prefix>_${needed}). \`leasehold roles\` creates that role and its privileges.`
  }
  if (kind === 'schema')
    return `Run: GRANT USAGE ON SCHEMA ${quoteIdentifier(object)} TO ${grantee}; as its owner.`
  const table = names.find(({ name }) => name === object)
  // What leases on a table of the user need.
  if (table !== undefined && (needs === 'worker' || text.includes('/* leasehold:')))
    return `Run: GRANT SELECT, UPDATE ON ${quoteQualified(table.schema, table.name)} TO ${grantee}; as its owner.`
  return `Whoever owns what it names can GRANT the privilege TO ${grantee}.`
}

interface QualifiedName {
  readonly schema: string
  readonly name: string
}

function qualifiedNames(text: string): QualifiedName[] {
  const matches = text.matchAll(/("(?:[^"]|"")+"|\w+)\.("(?:[^"]|"")+"|\w+)/g)
  return [...matches].map(([, schema = '', name = '']) => ({
    schema: unquoted(schema),
    name: unquoted(name),
  }))
}

function unquoted(identifier: string): string {
  return identifier.startsWith('"') ? identifier.slice(1, -1).replaceAll('""', '"') : identifier
}
