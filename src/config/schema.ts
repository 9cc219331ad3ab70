import { z } from 'zod'
import { isLoopbackHost } from './loopback.ts'
import { isDatabaseUrl } from './database-url.ts'
import { isSecretKey } from './secret-key.ts'
import { areNetworks, isProxy } from './webhook-network.ts'

/** Longer than this, a Node timer would fire at once. */
const LONGEST_TIMER_MS = 2_147_483_647
const SCHEMA_NAME = /^(?!pg_)[a-z_][a-z0-9_]{0,62}$/

/** Flags and the environment bring text; the config file brings numbers. */
const number = z.preprocess(
  (value) => (typeof value === 'string' && /^-?\d+(\.\d+)?$/.test(value) ? Number(value) : value),
  z.number(),
)
/** Whether a timing makes sense is judged by `timing()`, all four together. */
const milliseconds = number.pipe(z.number().max(LONGEST_TIMER_MS)).exactOptional()

export const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'] as const
export const LOG_FORMATS = ['pretty', 'json'] as const

/** Everything that can be set, with its default. What depends on the surroundings has none here. */
export const settingsSchema = z.strictObject({
  databaseUrl: z.string().refine(isDatabaseUrl).optional(),
  directory: z.string().min(1).default('.leasehold'),
  schema: z
    .string()
    .regex(SCHEMA_NAME)
    .refine((name) => name !== 'information_schema')
    .default('leasehold'),
  host: z.string().refine(isLoopbackHost).default('127.0.0.1'),
  port: number.pipe(z.int().min(0).max(65_535)).default(7400),
  logLevel: z.enum(LOG_LEVELS).default('info'),
  logFormat: z.enum(LOG_FORMATS).optional(),
  secretKey: z.string().refine(isSecretKey).optional(),
  webhookAllow: z
    .preprocess(
      (value) => (typeof value === 'string' ? value.split(',').map((cidr) => cidr.trim()) : value),
      z.array(z.string()),
    )
    .refine(areNetworks)
    .default([]),
  webhookProxy: z.string().refine(isProxy).exactOptional(),
  databaseWaitMs: number.pipe(z.number().min(0).max(LONGEST_TIMER_MS)).default(30_000),
  leaseMs: milliseconds,
  heartbeatMs: milliseconds,
  reaperIntervalMs: milliseconds,
  shutdownTimeoutMs: milliseconds,
})

/** The four that `timing()` judges together. */
export const timingSchema = settingsSchema.pick({
  leaseMs: true,
  heartbeatMs: true,
  reaperIntervalMs: true,
  shutdownTimeoutMs: true,
})

export type ParsedSettings = z.output<typeof settingsSchema>
export type SettingName = keyof ParsedSettings

/** Never shown, and no flags: everybody on the machine can read the command line of a process. */
export const SECRET_SETTINGS: readonly SettingName[] = ['secretKey']

// Object.keys forgets which keys it was given.
export const SETTING_NAMES = Object.keys(settingsSchema.shape) as readonly SettingName[]

export const TIMING_NAMES = timingSchema.keyof().options

interface Description {
  /** What it is for, as `--help` shows it. */
  readonly purpose: string
  /** Completes the sentence "… but must be". */
  readonly rule: string
}

const duration = `a number of milliseconds, at most ${LONGEST_TIMER_MS}`

export const DESCRIPTIONS: Readonly<Record<SettingName, Description>> = {
  databaseUrl: {
    purpose: 'the PostgreSQL to use; without it, `up` starts an embedded one',
    rule: 'a URL such as postgresql://user@host:5432/database',
  },
  directory: {
    purpose: 'where the embedded PostgreSQL keeps its data (default: .leasehold)',
    rule: 'the path of a directory',
  },
  schema: {
    purpose: "the schema of Leasehold's own tables (default: leasehold)",
    rule: 'a plain name: a to z, 0 to 9 and _, not beginning with a digit or pg_, at most 63 characters, and not information_schema',
  },
  host: {
    purpose: 'where HTTP listens: 127.0.0.1, localhost or ::1 (default: 127.0.0.1)',
    rule: '127.0.0.1, localhost or ::1: beyond loopback API keys are required, and this version has none yet',
  },
  port: {
    purpose:
      'the HTTP port; 0 takes any free one (default: 7400 for up, or a free one when that is taken; a free one for work)',
    rule: 'a whole number from 0 to 65535, where 0 takes any free port',
  },
  logLevel: {
    purpose: `${LOG_LEVELS.join(', ')} (default: info)`,
    rule: `one of ${LOG_LEVELS.join(', ')}`,
  },
  logFormat: {
    purpose: 'pretty or json (default: pretty on a terminal, json otherwise)',
    rule: `one of ${LOG_FORMATS.join(', ')}`,
  },
  webhookAllow: {
    purpose:
      'networks that webhooks may go to although they are not public, separated by commas: 127.0.0.0/8',
    rule: 'a list of networks such as 127.0.0.0/8,::1/128',
  },
  webhookProxy: {
    purpose: 'an HTTP proxy that webhooks go through; it then decides where they may go',
    rule: 'a URL such as http://proxy.internal:3128',
  },
  secretKey: {
    purpose: 'what the secrets of webhook endpoints are encrypted with',
    rule: '32 bytes as base64 or hex, such as `openssl rand -base64 32` makes; several are separated by commas, the newest first',
  },
  databaseWaitMs: {
    purpose: 'how long to wait at start for a database that does not answer (default: 30000)',
    rule: `${duration}, where 0 means a single attempt`,
  },
  leaseMs: { purpose: 'how long a lease lasts (default: 30000)', rule: duration },
  heartbeatMs: { purpose: 'how often leases are renewed (default: 0.3 x lease)', rule: duration },
  reaperIntervalMs: { purpose: 'how often expired leases are taken back (default: 10000)', rule: duration },
  shutdownTimeoutMs: {
    purpose: 'how long work in flight may take at shutdown (default: 0.8 x lease)',
    rule: duration,
  },
}

/** `leaseMs` → `--lease-ms`. */
export function flagOf(name: SettingName): string {
  return `--${words(name).join('-')}`
}

/** `leaseMs` → `LEASEHOLD_LEASE_MS`. The database has the name that every platform gives it. */
export function variableOf(name: SettingName): string {
  if (name === 'databaseUrl') return 'DATABASE_URL'
  return ['LEASEHOLD', ...words(name)].join('_').toUpperCase()
}

function words(name: SettingName): string[] {
  return name.split(/(?=[A-Z])/).map((word) => word.toLowerCase())
}
