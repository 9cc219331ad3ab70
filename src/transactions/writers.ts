import { LeaseholdError } from '../errors.ts'
import type { Queryable } from '../postgres/queryable.ts'
import {
  fromDrizzle,
  fromKnex,
  fromKysely,
  fromPg,
  fromPostgresJs,
  fromPrisma,
  fromQueryable,
  has,
  property,
} from './writer-adapters.ts'
import type {
  AdaptedWriter,
  DrizzleWriter,
  KnexWriter,
  KyselyWriter,
  PostgresJsWriter,
  PrismaWriter,
  TextQueryable,
  Writer,
} from './writer-types.ts'

export {
  fromDrizzle,
  fromKnex,
  fromKysely,
  fromPg,
  fromPostgresJs,
  fromPrisma,
  fromQueryable,
} from './writer-adapters.ts'
export type {
  AdaptedWriter,
  DrizzleTag,
  DrizzleWriter,
  KnexWriter,
  KyselyWriter,
  PostgresJsWriter,
  PrismaWriter,
  TextQueryable,
  Writer,
} from './writer-types.ts'

const ACCEPTED = [
  'a pg Client, PoolClient or Pool',
  'a transaction of Leasehold’s own Database',
  'the sql of postgres.js',
  'a Kysely, Drizzle, Prisma or Knex transaction',
  'any { query(text, values) }',
].join('; ')

/**
 * Recognises what it was given by its methods, and speaks to it. No driver is imported: which ones are installed, and in
 * how many copies, is the user's affair.
 */
export function writerOf(given: Writer): AdaptedWriter {
  const adapt = SHAPES.find(({ fits }) => fits(given))?.adapt
  if (adapt !== undefined) return adapt(given)
  throw new LeaseholdError('WRITER_INVALID', `Nothing can be written with ${described(given)}.`, {
    remedy: `Give ${ACCEPTED}.`,
  })
}

/** As `writerOf`, for what is worthless outside a transaction. */
export async function transactionOf(given: Writer, what: string): Promise<AdaptedWriter> {
  const writer = writerOf(given)
  if ((await writer.inTransaction()) !== false) return writer
  throw new LeaseholdError(
    'WRITER_INVALID',
    `${what} was given ${described(given)}, which is not in a transaction.`,
    {
      remedy:
        'Begin a transaction and give what holds it, so that everything in it happens together or not at all.',
    },
  )
}

interface Shape {
  readonly fits: (given: unknown) => boolean
  readonly adapt: (given: Writer) => AdaptedWriter
}

/* Each cast below is what `fits` beside it has just established. */
const SHAPES: readonly Shape[] = [
  {
    fits: (given) => has(given, 'query') && has(given, 'inTransaction'),
    adapt: (given) => given as AdaptedWriter,
  },
  { fits: (given) => has(given, '$queryRawUnsafe'), adapt: (given) => fromPrisma(given as PrismaWriter) },
  { fits: (given) => has(given, 'executeQuery'), adapt: (given) => fromKysely(given as KyselyWriter) },
  // Neon's driver has an unsafe() that sends nothing, and a query().
  {
    fits: (given) => has(given, 'unsafe') && !has(given, 'query'),
    adapt: (given) => fromPostgresJs(given as PostgresJsWriter),
  },
  {
    fits: (given) => has(given, 'raw') && property(given, 'client') !== undefined,
    adapt: (given) => fromKnex(given as KnexWriter),
  },
  {
    fits: (given) => has(given, 'execute') && has(property(given, 'dialect'), 'sqlToQuery'),
    adapt: (given) => fromDrizzle(given as DrizzleWriter),
  },
  { fits: takesStatement, adapt: (given) => fromQueryable(given as Queryable) },
  { fits: (given) => has(given, 'query'), adapt: (given) => fromPg(given as TextQueryable) },
]

/**
 * Our own `Queryable` takes one argument; `pg` declares three, and one that was patched by a tracer declares none.
 */
function takesStatement(given: unknown): boolean {
  const query = property(given, 'query')
  return typeof query === 'function' && query.length === 1
}

/** What it is, and nothing that is in it: that may be a password. */
function described(given: unknown): string {
  if (typeof given === 'function') return `the function ${given.name || '(without a name)'}`
  if (typeof given !== 'object' || given === null)
    return `a value of type ${given === null ? 'null' : typeof given}`
  const name: unknown = property(property(given, 'constructor'), 'name')
  return typeof name === 'string' && name !== 'Object' && name !== ''
    ? `an object of class ${name}`
    : `an object with ${Object.keys(given).slice(0, 8).join(', ') || 'nothing in it'}`
}
