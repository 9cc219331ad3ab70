/** `leasehold keys …`: the keys of the HTTP API. */
import type { Command } from 'commander'
import { type ApiKey, createKey, KEY_ROLES, listKeys, revokeKey } from '../operations/api-keys.ts'
import { DATABASE_SETTINGS, type Define, type Run, UsageError } from './command.ts'
import { withRegistry } from './database.ts'
import { futureFlag, isSet, JSON_FLAG, PRINCIPAL_FLAG, principalOf, textFlag } from './flags.ts'
import { columns, printableJson, relative } from './output.ts'

export function addKeyCommands(keys: Command, define: Define): void {
  define(
    keys,
    'create <name>',
    'create a key, and print it: it is shown only once',
    DATABASE_SETTINGS,
    create,
    (command) =>
      command
        .option('--role <role>', `what it may do: ${KEY_ROLES.join(', ')} (default: read)`)
        .option('--tenant <tenant>', 'the only tenant whose endpoints and deliveries it sees')
        .option(
          '--expires <time>',
          'until when it is valid: 90d, or 2027-01-01T00:00:00Z (default: for ever)',
        )
        .option(...PRINCIPAL_FLAG)
        .option(...JSON_FLAG),
  )
  define(keys, 'list', 'show the keys, newest first', DATABASE_SETTINGS, list, (command) =>
    command.option(...JSON_FLAG),
  )
  define(
    keys,
    'revoke <id>',
    'refuse a key from now on, by its id or its name',
    DATABASE_SETTINGS,
    revoke,
    (command) =>
      command
        .option('--reason <text>', 'reason, for the audit')
        .option(...PRINCIPAL_FLAG)
        .option(...JSON_FLAG),
  )
}

async function create(run: Run): Promise<number> {
  const { flags, args, print } = run
  const [name = ''] = args
  const given = textFlag(flags, 'role') ?? 'read'
  const role = KEY_ROLES.find((each) => each === given)
  if (role === undefined)
    throw new UsageError(`--role is ${JSON.stringify(given)}: give one of ${KEY_ROLES.join(', ')}.`)
  const tenant = textFlag(flags, 'tenant')
  const expiresAt = futureFlag(flags, 'expires', new Date())
  const principal = principalOf(run)
  return withRegistry(
    run,
    async (db, schema) => {
      const created = await createKey(db, { name, role, tenant, expiresAt }, { principal }, { schema })
      print(isSet(flags, 'json') ? `${printableJson(created)}\n` : `${created.key}\n`)
      return 0
    },
    'api',
  )
}

async function list(run: Run): Promise<number> {
  const { flags, print } = run
  return withRegistry(
    run,
    async (db, schema) => {
      const keys = await listKeys(db, { schema })
      print(`${isSet(flags, 'json') ? printableJson(keys) : keysText(keys, new Date())}\n`)
      return 0
    },
    'api',
  )
}

async function revoke(run: Run): Promise<number> {
  const { flags, args, print } = run
  const [given = ''] = args
  const principal = principalOf(run)
  const reason = textFlag(flags, 'reason')
  return withRegistry(
    run,
    async (db, schema) => {
      const named = (await listKeys(db, { schema })).find(({ name }) => name === given)
      const revoked = await revokeKey(db, named?.id ?? given, { principal, reason }, { schema })
      print(isSet(flags, 'json') ? `${printableJson(revoked)}\n` : `Revoked ${revoked.name}.\n`)
      return 0
    },
    'api',
  )
}

function keysText(keys: readonly ApiKey[], now: Date): string {
  if (keys.length === 0) return 'No keys. Create one with: leasehold keys create <name> --role operate'
  const rows = keys.map((key) => [
    key.name,
    key.role,
    key.tenant ?? '',
    stateOf(key, now),
    key.lastUsedAt === null ? 'never' : relative(key.lastUsedAt, now),
    key.createdBy,
    key.id,
  ])
  return columns([['NAME', 'ROLE', 'TENANT', 'STATE', 'LAST USED', 'CREATED BY', 'ID'], ...rows])
}

function stateOf({ revokedAt, expiresAt }: ApiKey, now: Date): string {
  if (revokedAt !== null) return 'revoked'
  if (expiresAt === null) return 'valid'
  return expiresAt <= now ? 'expired' : `valid, expires ${relative(expiresAt, now)}`
}
