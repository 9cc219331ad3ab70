/** Every setting: its rule, its default, its names on the command line and in the environment, and how it is shown. */
import { inspect } from 'node:util'
import { z } from 'zod'
import { DATABASE_URL_RULE, isDatabaseUrl, withoutPassword } from '../database-url.ts'
import { isLeaseholdError } from '../errors.ts'
import { nearest } from '../nearest.ts'
import { MIN_AUDIT_RETENTION_MS } from '../rules.ts'
import { MAX_TIMER_MS } from '../timeout.ts'
import { DEFAULT_MAX_PER_TENANT, LARGEST_MAX_PER_TENANT } from '../webhooks/endpoints/endpoint.ts'
import { networkPolicy, parseProxyUrl } from '../webhooks/network/policy.ts'
import { secretKeys } from '../webhooks/signing/encryption.ts'

/** Only this machine reaches these. */
export const LOOPBACK_HOSTS: readonly string[] = ['127.0.0.1', 'localhost', '::1']

/** An IPv4 or IPv6 address, or a name. Whether this machine has it is known once the server listens. */
const HOST = /^[0-9a-z]([0-9a-z.-]*[0-9a-z])?$|^[0-9a-f:.]*:[0-9a-f:.]*(%\w+)?$/i

const SCHEMA_NAME = /^(?!pg_)[a-z_][a-z0-9_]{0,62}$/

/** It has to fit into the owner column of any lease table, with a # and the token after it. */
const WORKER_ID = /^[\w.:@-]{1,64}$/

/** Flags and the environment give text; the config file gives numbers. */
const number = z.preprocess(
  (value) => (typeof value === 'string' && /^-?\d+(\.\d+)?$/.test(value) ? Number(value) : value),
  z.number(),
)
/** `timing()` checks the four timings, and how they fit together. */
const milliseconds = number.pipe(z.number().max(MAX_TIMER_MS)).exactOptional()

/** Separated by commas on the command line and in the environment. */
const listOfTexts = z.preprocess(
  (value) => (typeof value === 'string' ? value.split(',').map((each) => each.trim()) : value),
  z.array(z.string()),
)

function portOf(text: string): number {
  return /^\s*\d{1,5}\s*$/.test(text) ? Number(text) : Number.NaN
}

export const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'] as const
export const LOG_FORMATS = ['pretty', 'json'] as const

/** Every setting with its default. A default that depends on where the command runs is filled in by `loadSettings`. */
export const settingsSchema = z.strictObject({
  databaseUrl: z.string().refine(isDatabaseUrl).optional(),
  listenUrl: z.string().refine(isDatabaseUrl).exactOptional(),
  directory: z.string().min(1).default('.leasehold'),
  schema: z
    .string()
    .regex(SCHEMA_NAME)
    .refine((name) => name !== 'information_schema')
    .default('leasehold'),
  host: z.string().regex(HOST).default('127.0.0.1'),
  port: number.pipe(z.int().min(0).max(65_535)).default(7400),
  metricsHost: z.string().regex(HOST).exactOptional(),
  metricsPort: number.pipe(z.int().min(0).max(65_535)).default(7401),
  instanceName: z.string().trim().min(1).max(40).exactOptional(),
  instanceColor: z
    .string()
    .regex(/^#[0-9a-f]{6}$/i)
    .exactOptional(),
  portalOrigins: listOfTexts.refine((origins) => origins.every((origin) => isOrigin(origin))).exactOptional(),
  logLevel: z.enum(LOG_LEVELS).default('info'),
  logFormat: z.enum(LOG_FORMATS).optional(),
  secretKey: z.string().refine(isSecretKey).optional(),
  webhookAllow: listOfTexts.refine((allow) => isAccepted(() => networkPolicy({ allow }))).default([]),
  webhookRefuse: listOfTexts.refine((refuse) => isAccepted(() => networkPolicy({ refuse }))).default([]),
  webhookPorts: z
    .preprocess(
      (value) =>
        typeof value === 'string' || typeof value === 'number' ? String(value).split(',').map(portOf) : value,
      z.array(z.number()).min(1),
    )
    .refine((ports) => isAccepted(() => networkPolicy({ ports })))
    .exactOptional(),
  webhookProxy: z
    .string()
    .refine((url) => isAccepted(() => parseProxyUrl(url)))
    .exactOptional(),
  webhookEndpointsPerTenant: number
    .pipe(z.int().min(1).max(LARGEST_MAX_PER_TENANT))
    .default(DEFAULT_MAX_PER_TENANT),
  databaseWaitMs: number.pipe(z.number().min(0).max(MAX_TIMER_MS)).default(30_000),
  workerId: z.string().regex(WORKER_ID).exactOptional(),
  maxConnections: number.pipe(z.int().min(1).max(1_000)).exactOptional(),
  auditRetentionMs: number.pipe(z.number().min(MIN_AUDIT_RETENTION_MS)).exactOptional(),
  leaseMs: milliseconds,
  heartbeatMs: milliseconds,
  reaperIntervalMs: milliseconds,
  shutdownTimeoutMs: milliseconds,
})

/** The four that `timing()` checks together. */
export const timingSchema = settingsSchema.pick({
  leaseMs: true,
  heartbeatMs: true,
  reaperIntervalMs: true,
  shutdownTimeoutMs: true,
})

export type ParsedSettings = z.output<typeof settingsSchema>
export type SettingName = keyof ParsedSettings

/** Never shown, and never flags: everybody on the machine can read the command line of a process. */
export const SECRET_SETTINGS: readonly SettingName[] = ['secretKey']

/** Settings that may contain a secret: `DATABASE_URL_FILE` names a file that contains the value. */
export const FILE_SETTINGS: readonly SettingName[] = ['databaseUrl', 'listenUrl', 'secretKey', 'webhookProxy']

// Object.keys forgets which keys it was given.
export const SETTING_NAMES = Object.keys(settingsSchema.shape) as readonly SettingName[]

export const TIMING_NAMES = timingSchema.keyof().options

interface Description {
  /** What `--help` says about it. */
  readonly purpose: string
  /** Completes the sentence "… but must be". */
  readonly rule: string
}

const duration = `a number of milliseconds, at most ${MAX_TIMER_MS}`

export const DESCRIPTIONS: Readonly<Record<SettingName, Description>> = {
  databaseUrl: {
    purpose:
      'URL of the PostgreSQL database; several hosts, separated by commas, are tried in their order; without it, `up` starts an embedded PostgreSQL',
    rule: DATABASE_URL_RULE,
  },
  listenUrl: {
    purpose:
      'URL of the same database for the one connection that listens, where the database URL leads to a connection pooler (default: the database URL)',
    rule: 'a URL such as postgresql://user@host:5432/database',
  },
  directory: {
    purpose: 'directory of the embedded PostgreSQL (default: .leasehold)',
    rule: 'the path of a directory',
  },
  schema: {
    purpose: "schema of Leasehold's own tables (default: leasehold)",
    rule: 'a name of at most 63 characters from a to z, 0 to 9 and _, that does not begin with a digit or pg_ and is not information_schema',
  },
  host: {
    purpose:
      'address on which HTTP listens; beyond loopback, such as on 0.0.0.0, the API needs keys (default: 127.0.0.1)',
    rule: 'an address or the name of a host, such as 127.0.0.1, 0.0.0.0 or ::',
  },
  port: {
    purpose:
      'HTTP port; 0 takes any free port (default: 7400; without keys `up` takes any free port if that is in use, and `work` always does)',
    rule: 'a whole number from 0 to 65535; 0 takes any free port',
  },
  metricsHost: {
    purpose:
      'address on which /livez, /readyz and /metrics, and nothing else, are served as well, for probes and scrapes (default: none)',
    rule: 'an address or the name of a host, such as 127.0.0.1, 0.0.0.0 or ::',
  },
  metricsPort: {
    purpose: 'port of --metrics-host; 0 takes any free port (default: 7401)',
    rule: 'a whole number from 0 to 65535; 0 takes any free port',
  },
  instanceName: {
    purpose: 'name of this installation, which the dashboard shows, such as production (default: none)',
    rule: 'a text of 1 to 40 characters',
  },
  instanceColor: {
    purpose: 'colour of this installation in the dashboard, such as #b00020',
    rule: 'a colour with six hexadecimal digits, such as #b00020',
  },
  portalOrigins: {
    purpose:
      'origins of the pages that may show the portal for webhook customers in a frame, separated by commas (default: none)',
    rule: 'a list of origins such as https://app.example.com, without paths',
  },
  logLevel: {
    purpose: `the least severe entries that are logged: ${LOG_LEVELS.join(', ')} (default: info)`,
    rule: `one of ${LOG_LEVELS.join(', ')}`,
  },
  logFormat: {
    purpose: 'format of the log, pretty or json (default: pretty on a terminal, otherwise json)',
    rule: `one of ${LOG_FORMATS.join(', ')}`,
  },
  webhookAllow: {
    purpose: 'private networks that webhooks may be sent to, separated by commas, such as 127.0.0.0/8',
    rule: 'a list of networks such as 127.0.0.0/8,::1/128',
  },
  webhookRefuse: {
    purpose: 'public networks that webhooks may not be sent to, separated by commas: your own networks',
    rule: 'a list of networks such as 203.0.113.0/24,2001:db8::/32',
  },
  webhookPorts: {
    purpose: 'the only ports that webhooks may be sent to, separated by commas (default: any)',
    rule: 'a list of ports from 1 to 65535, such as 443,8443',
  },
  webhookProxy: {
    purpose: 'HTTP proxy for webhooks; the proxy then decides which addresses are allowed',
    rule: 'a URL such as http://proxy.internal:3128',
  },
  webhookEndpointsPerTenant: {
    purpose: `how many webhook endpoints a tenant may have (default: ${DEFAULT_MAX_PER_TENANT})`,
    rule: `a whole number from 1 to ${LARGEST_MAX_PER_TENANT}`,
  },
  secretKey: {
    purpose: 'key that encrypts the secrets and headers of webhook endpoints',
    rule: '32 bytes as base64 or hex, for example from `openssl rand -base64 32`; separate several keys by commas, the newest first',
  },
  databaseWaitMs: {
    purpose:
      'how long to wait at the start for a database that does not answer (default: 30000; for `work`, `serve` and `up` without a limit)',
    rule: `${duration}; 0 means a single attempt`,
  },
  workerId: {
    purpose:
      'id of this process in leases, logs and metrics; no two may have the same (default: host, process id and a random part)',
    rule: 'at most 64 letters, digits and the characters . _ : @ -',
  },
  maxConnections: {
    purpose: 'how many connections the workers of a process may open (default: 6)',
    rule: 'a whole number from 1 to 1000',
  },
  auditRetentionMs: {
    purpose: 'how long entries of the audit are retained, by processes that reap (default: 365 days)',
    rule: `a number of milliseconds from ${MIN_AUDIT_RETENTION_MS} (30 days); the table of the audit refuses to delete younger entries`,
  },
  leaseMs: { purpose: 'how long a lease lasts (default: 30000)', rule: duration },
  heartbeatMs: { purpose: 'interval between the renewals of a lease (default: 0.3 x lease)', rule: duration },
  reaperIntervalMs: {
    purpose:
      'interval between runs of the reaper (default: 10000, or a third of the lease if that is shorter)',
    rule: duration,
  },
  shutdownTimeoutMs: {
    purpose: 'how long running handlers may take to finish at shutdown (default: 0.8 x lease)',
    rule: duration,
  },
}

/** `leaseMs` → `--lease-ms`. */
export function flagOf(name: SettingName): string {
  return `--${words(name).join('-')}`
}

/** `leaseMs` → `LEASEHOLD_LEASE_MS`. The database URL has the name that hosting platforms give it. */
export function variableOf(name: SettingName): string {
  if (name === 'databaseUrl') return 'DATABASE_URL'
  return ['LEASEHOLD', ...words(name)].join('_').toUpperCase()
}

/** `DATABASE_URL` → `DATABASE_URL_FILE`, as containers are given secrets. */
export function fileVariableOf(name: SettingName): string {
  return `${variableOf(name)}_FILE`
}

/** Variables of this project's own tests (CONTRIBUTING.md). They are here because every other unknown name is refused. */
export const TEST_VARIABLES = [
  'LEASEHOLD_TEST_DATABASE_URL',
  'LEASEHOLD_TEST_CITUS_URL',
  'LEASEHOLD_REQUIRE_BROKERS',
  'LEASEHOLD_CRASH_LOOP_SECONDS',
  'LEASEHOLD_SEED',
  'LEASEHOLD_RUNS',
] as const

const PREFIX = 'LEASEHOLD_'

/** What Kubernetes sets in every container for a Service whose name begins with `leasehold`. */
const SERVICE_VARIABLE = /_SERVICE_(?:HOST|PORT)(?:_\w+)?$|_PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?$/
const SERVICE_PORT = /^(?:tcp|udp|sctp):\/\//

/** Whether Kubernetes has set the variable, and not a person: `LEASEHOLD_PORT=tcp://10.0.0.1:7400` is no port of ours. */
export function isOfKubernetes(variable: string, value: string): boolean {
  return SERVICE_VARIABLE.test(variable) || (variable.endsWith('_PORT') && SERVICE_PORT.test(value))
}

/** The problems with variables that look like ours and are not. An empty one counts as not set. */
export function unknownVariables(environment: Readonly<Record<string, string | undefined>>): string[] {
  const settings = [...SETTING_NAMES.map(variableOf), ...FILE_SETTINGS.map(fileVariableOf)]
  const known = new Set<string>([...settings, ...TEST_VARIABLES])
  const unknown = Object.entries(environment).filter(
    ([name, value = '']) =>
      name.startsWith(PREFIX) && value !== '' && !known.has(name) && !isOfKubernetes(name, value),
  )
  return unknown.map(([name]) => {
    // Without the prefix, which all of them share and which would make any two names similar.
    const meant = nearest(withoutPrefix(name), settings.map(withoutPrefix))
    const hint =
      meant === undefined
        ? `the variables are ${settings.join(', ')}`
        : `did you mean ${settings.find((variable) => withoutPrefix(variable) === meant)}?`
    return `${name} (environment) is not a setting: ${hint}`
  })
}

function withoutPrefix(variable: string): string {
  return variable.startsWith(PREFIX) ? variable.slice(PREFIX.length) : variable
}

function words(name: SettingName): string[] {
  return name.split(/(?=[A-Z])/).map((word) => word.toLowerCase())
}

/** The value as an error message shows it. */
export function shownValue(name: SettingName, value: unknown): string {
  if (SECRET_SETTINGS.includes(name)) return 'set (and not shown)'
  if (name === 'databaseUrl' || name === 'listenUrl' || name === 'webhookProxy') {
    if (typeof value !== 'string') return `of type ${typeof value}`
    // The user of a proxy may be a token.
    return name === 'webhookProxy'
      ? withoutPassword(value).replace(/\/\/[^/]*@/, '//***@')
      : withoutPassword(value)
  }
  return inspect(value, { depth: 1, breakLength: Infinity })
}

/** One key, or several separated by commas. */
function isSecretKey(text: string): boolean {
  return isAccepted(() => secretKeys(text.split(',').map((key) => key.trim())))
}

/** What a browser calls an origin: a scheme, a host and perhaps a port. */
export function isOrigin(text: string): boolean {
  return /^https?:/.test(text) && URL.canParse(text) && new URL(text).origin === text
}

/** Whether a check of the webhooks passes, so that their rules are written down once. */
function isAccepted(check: () => unknown): boolean {
  try {
    check()
    return true
  } catch (error) {
    if (isLeaseholdError(error)) return false
    throw error
  }
}
