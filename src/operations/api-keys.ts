/** The keys of the HTTP API: created, listed, revoked, and recognised. A key is shown once; its hash is stored. */
import { createHash, randomBytes, randomUUID, timingSafeEqual } from 'node:crypto'
import { z } from 'zod'
import { LeaseholdError } from '../errors.ts'
import type { Database } from '../postgres/database.ts'
import { isUniqueViolation } from '../lease/data-errors.ts'
import { isDistributed } from '../postgres/citus.ts'
import { quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { audit } from './audit.ts'
import { field, moment, oneOf, reason, text, uuid } from './fields.ts'
import { operation, resource } from './operation.ts'
import { checkNames, checkPrincipal, checkTexts, invalid } from './request-checks.ts'
import { KEY_ROLES, type KeyRole } from './roles.ts'

const key = z.object({
  name: z.string().describe('The audit names whoever uses the key by it.'),
  role: z.enum(KEY_ROLES),
  tenant: z
    .string()
    .nullable()
    .describe('The only tenant whose endpoints and deliveries it sees; null: not limited.'),
  state: z.enum(['valid', 'expired', 'revoked']),
  expiresAt: field(moment.nullable(), { title: 'Expires', absent: 'never' }),
  lastUsedAt: field(moment.nullable().describe('To within a minute.'), {
    title: 'Last used',
    absent: 'never',
  }),
  createdAt: field(moment, { title: 'Created' }),
  createdBy: z.string(),
  revokedAt: field(moment.nullable(), { title: 'Revoked' }),
  revokedBy: z.string().nullable(),
  id: uuid,
})

export type ApiKey = z.output<typeof key>

const ABOUT_KEYS = {
  resource: resource({
    rows: 'keys',
    tag: 'keys',
    item: key,
    columns: ['name', 'role', 'tenant', 'state', 'expiresAt', 'lastUsedAt', 'createdBy', 'id'],
    none: 'No keys. Create one with: leasehold keys create <name> --role operate',
  }),
  role: 'admin',
  databaseRole: 'api',
} as const

const MAX_NAME_CHARACTERS = 100

export const KEYS = [
  operation({
    ...ABOUT_KEYS,
    kind: 'list',
    command: 'keys list',
    path: '/keys',
    summary: 'List the keys, the newest first',
    input: z.strictObject({}),
    output: z.object({ items: z.array(key) }),
    run: async ({ db, schema }) => ({ items: await listKeys(db, { schema }) }),
  }),
  operation({
    ...ABOUT_KEYS,
    kind: 'create',
    command: 'keys create',
    path: '/keys',
    positional: ['name'],
    summary: 'Create a key, which is shown only once',
    input: z.strictObject({
      name: text
        .max(MAX_NAME_CHARACTERS, `give at most ${MAX_NAME_CHARACTERS} characters`)
        .meta({ examples: ['grafana'] }),
      role: field(oneOf(KEY_ROLES).default('read').describe('What it may do.'), { placeholder: 'role' }),
      tenant: field(text.describe('The only tenant whose endpoints and deliveries it sees.'), {
        placeholder: 'tenant',
      }).optional(),
      expiresAt: field(moment.describe('Until when it is valid.'), {
        flag: 'expires',
        absent: 'for ever',
        relativeTo: 'future',
      }).optional(),
    }),
    output: key.extend({
      key: z
        .string()
        .optional()
        .describe('The key itself: it is shown once, and not when the request is repeated.'),
    }),
    secrets: ['key'],
    run: async ({ db, schema, principal }, asked) => createKey(db, asked, { principal }, { schema }),
  }),
  operation({
    ...ABOUT_KEYS,
    kind: 'remove',
    command: 'keys revoke',
    path: '/keys/{id}',
    summary: 'Refuse a key from now on, by its id or its name',
    input: z.strictObject({
      id: text.describe('The id of the key, or its name.'),
      reason: reason.optional(),
    }),
    output: key,
    done: ({ name }) => `Revoked ${name}.`,
    run: async ({ db, schema, principal }, { id, reason: why }) =>
      revokeKey(db, id, { principal, reason: why }, { schema }),
  }),
]

export interface NewKey {
  readonly name: string
  readonly role: KeyRole
  readonly tenant?: string | undefined
  readonly expiresAt?: Date | undefined
}

export interface KeyOptions {
  readonly schema?: string | undefined
}

const COLUMNS = `id::text as id, name, role, tenant, created_at as "createdAt", created_by as "createdBy",
  expires_at as "expiresAt", last_used_at as "lastUsedAt", revoked_at as "revokedAt", revoked_by as "revokedBy",
  case when revoked_at is not null then 'revoked' when expires_at <= now() then 'expired' else 'valid' end as state`

/** Returns the key itself, which is shown only here. */
export async function createKey(
  db: Database,
  key: NewKey,
  { principal: by }: { readonly principal: string },
  { schema = 'leasehold' }: KeyOptions = {},
): Promise<ApiKey & { readonly key: string }> {
  const principal = checkPrincipal(by, 'key')
  checkKey(key)
  const { name, role, tenant, expiresAt } = key
  if (tenant !== undefined && (await isDistributed(db, schema)))
    throw invalid(
      'tenant',
      tenant,
      'Citus distributes the tables, and cannot limit a key to a tenant: leave it out.',
    )
  const id = randomUUID()
  const text = `lhk_${id.replaceAll('-', '')}_${randomBytes(32).toString('base64url')}`
  try {
    return await db.transaction(async (tx) => {
      const { rows } = await tx.query<ApiKey>({
        text: `insert into ${keysOf(schema)} (id, name, role, tenant, hash, created_by, expires_at)
values ($1, $2, $3, $4, $5, $6, $7) returning ${COLUMNS}`,
        values: [id, name, role, tenant ?? null, hashOf(text), principal, expiresAt ?? null],
      })
      const created = found(rows[0], id)
      const details = { name, role, tenant: tenant ?? null, expiresAt: expiresAt ?? null }
      await audit(tx, schema, { principal, action: 'keys.create', target: id, details })
      return { ...created, key: text }
    })
  } catch (error) {
    if (!isUniqueViolation(error)) throw error
    throw new LeaseholdError(
      'STATE_CONFLICT',
      `There is, or was, a key with the name ${JSON.stringify(name)}.`,
      {
        remedy: 'Give another name: the audit names whoever uses a key by it.',
        field: 'name',
      },
    )
  }
}

/** The newest first. */
export async function listKeys(db: Queryable, { schema = 'leasehold' }: KeyOptions = {}): Promise<ApiKey[]> {
  const { rows } = await db.query<ApiKey>({
    text: `select ${COLUMNS} from ${keysOf(schema)} order by created_at desc, id desc`,
  })
  return rows
}

/** Refuses a key from now on, by its id or its name. One that was revoked before stays as it is. */
export async function revokeKey(
  db: Database,
  idOrName: string,
  { principal: by, reason: why }: { readonly principal: string; readonly reason?: string | undefined },
  { schema = 'leasehold' }: KeyOptions = {},
): Promise<ApiKey> {
  const principal = checkPrincipal(by, 'change')
  checkTexts({ id: idOrName, reason: why })
  return db.transaction(async (tx) => {
    // A name may look like the id of another key.
    const { rows: named } = await tx.query<ApiKey>({
      text: `select ${COLUMNS} from ${keysOf(schema)} where id::text = lower($1) or name = $1
order by id::text = lower($1) desc limit 1 for update`,
      values: [idOrName],
    })
    const given = found(named[0], idOrName)
    if (given.revokedAt !== null) return given
    const { rows } = await tx.query<ApiKey>({
      text: `update ${keysOf(schema)} set revoked_at = now(), revoked_by = $2 where id = $1 returning ${COLUMNS}`,
      values: [given.id, principal],
    })
    const details = { name: given.name, reason: why ?? null }
    await audit(tx, schema, { principal, action: 'keys.revoke', target: given.id, details })
    return found(rows[0], given.id)
  })
}

export interface KnownKey extends Pick<ApiKey, 'id' | 'name' | 'role' | 'tenant' | 'expiresAt'> {
  /** Its last use was recorded more than a minute ago. */
  readonly isOutdated: boolean
}

/** The key of this text, unless it is unknown, revoked or has expired. */
export async function findKey(
  db: Queryable,
  text: string,
  { schema = 'leasehold' }: KeyOptions = {},
): Promise<KnownKey | undefined> {
  const id = idIn(text)
  if (id === undefined) return undefined
  const { rows } = await db.query<KnownKey & { readonly hash: Buffer }>({
    text: `select id::text as id, name, role, tenant, expires_at as "expiresAt", hash,
  last_used_at is null or last_used_at < now() - interval '1 minute' as "isOutdated"
from ${keysOf(schema)} where id = $1 and revoked_at is null and (expires_at is null or expires_at > now())`,
    values: [id],
  })
  const [found] = rows
  if (found === undefined) return undefined
  const { hash, ...key } = found
  return timingSafeEqual(hash, hashOf(text)) ? key : undefined
}

/** Records that a key is used, once a minute. Only who has the key can cause that: call it when it has been recognised. */
export async function recordUse(
  db: Queryable,
  { id, isOutdated }: Pick<KnownKey, 'id' | 'isOutdated'>,
  { schema = 'leasehold' }: KeyOptions = {},
): Promise<void> {
  if (!isOutdated) return
  await db.query({ text: `update ${keysOf(schema)} set last_used_at = now() where id = $1`, values: [id] })
}

/** Whether a text has the form of a key. What has not is none, and the database need not be asked. */
export function isKeyText(text: string): boolean {
  return idIn(text) !== undefined
}

/** The id that is a part of the text of a key. */
function idIn(text: string): string | undefined {
  const [, hex] = /^lhk_([0-9a-f]{32})_[\w-]{43}$/.exec(text) ?? []
  return hex?.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5')
}

/** A key has 256 random bits, so that a fast hash is enough: nobody can try all of them. */
function hashOf(text: string): Buffer {
  return createHash('sha256').update(text).digest()
}

function checkKey({ name, role, tenant, expiresAt }: NewKey): void {
  checkTexts({ name, tenant })
  if (name.trim() !== name || name.length > MAX_NAME_CHARACTERS)
    throw invalid('name', name, `Give at most ${MAX_NAME_CHARACTERS} characters, without spaces at the ends.`)
  // The principal could be that of a tenant's key: `acme/ci`. Whoever has that sees the entries of both in the audit.
  if (name.includes('/')) throw invalid('name', name, 'Give a name without a slash.')
  // The audit would not tell the key from a customer in the portal.
  if (tenant !== undefined && /^portal(:|$)/.test(name))
    throw invalid('name', name, 'In a tenant, sessions of the portal have such names: give another one.')
  checkNames('role', [role], KEY_ROLES)
  if (role === 'admin' && tenant !== undefined)
    throw invalid('tenant', tenant, 'A key with the role admin has no tenant: give the role read or operate.')
  if (expiresAt !== undefined && !(expiresAt.getTime() > Date.now()))
    throw invalid('expiresAt', expiresAt, 'Give a time in the future, or leave it out.')
}

function found<Row>(row: Row | undefined, id: string): Row {
  if (row !== undefined) return row
  throw new LeaseholdError('KEY_NOT_FOUND', `No key has the id or the name ${id}.`, {
    remedy: '`leasehold keys list` lists the keys.',
  })
}

function keysOf(schema: string): string {
  return quoteQualified(schema, 'api_keys')
}
