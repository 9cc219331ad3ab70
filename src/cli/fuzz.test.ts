/**
 * Malformed command lines: each ends with exit code 0, 1 or 2 and a message for a person, changes nothing unless it
 * succeeds, and repeats no secret.
 */
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import type { Command } from 'commander'
import fc from 'fast-check'
import { beforeAll, expect, it } from 'vitest'
import { checksums } from '../../test/support/checksums.ts'
import { type Called, useCommandLine } from '../../test/support/command-line.ts'
import { repeat } from '../../test/support/lease-model/property.ts'
import { SECRET_KEY } from '../../test/support/webhook-endpoints.ts'
import { createKey } from '../operations/api-keys.ts'
import { enqueue } from '../outbox/index.ts'
import { createSync } from '../sync/index.ts'
import { endpoints, send } from '../webhooks/index.ts'
import { createProgram } from './program.ts'

const { call, db, url, directory } = useCommandLine()

/** Always the same command lines, unless LEASEHOLD_SEED and LEASEHOLD_RUNS ask for others. */
const { seed, path, runs: RUNS } = repeat({ LEASEHOLD_SEED: '20', ...process.env }, 120)
const REPEAT = { seed, ...(path === undefined ? {} : { path }) }

/** What no output may contain. */
const secrets: string[] = [SECRET_KEY, new URL(url).password].filter((text) => text !== '')
/** A credential in an argument that is not understood. */
const GIVEN = 'canary-in-an-argument'
const IN_DATABASE = 'canary-in-the-database'

interface Ids {
  readonly endpoint: string
  readonly job: string
}
const known: { ids: Ids } = { ids: { endpoint: '', job: '' } }

beforeAll(async () => {
  secrets.push(IN_DATABASE)
  // A database that does not answer is not waited for.
  await writeFile(
    join(directory(), 'leasehold.config.mjs'),
    `export default { secretKey: '${SECRET_KEY}', databaseWaitMs: 50 }`,
  )
  await enqueue(db, { type: 'order.paid', payload: 1, orderingKey: 'k' })
  await db.query({
    text: `insert into leasehold.outbox (event_type, payload, status, dead_at, last_error) values ('order.sent', '2', 'DEAD', now(), 'timeout')`,
  })
  const by = { principal: 'olga' }
  const created = await endpoints(db, { secretKey: SECRET_KEY }).create(
    { url: 'https://receiver.example/hook', headers: { authorization: IN_DATABASE } },
    by,
  )
  secrets.push(created.secret)
  await send(db, { type: 'order.paid', payload: 1 })
  const { key } = await createKey(db, { name: 'laptop', role: 'admin' }, by)
  secrets.push(key)
  const numbers = createSync().define<number>('numbers', {
    plan: () => [1],
    syncChunk: async () => ({ rows: 1 }),
  })
  const { jobId } = await numbers.enqueue(db, { matrixId: 'm' })
  known.ids = { endpoint: created.endpoint.id, job: jobId }
})

interface Flag {
  readonly name: string
  readonly takesValue: boolean
}

interface Declared {
  readonly path: readonly string[]
  readonly flags: readonly Flag[]
  readonly args: number
}

/** The commands that do something, from the command tree itself, so that a new one is among them. */
function declaredIn(command: Command, path: readonly string[] = []): readonly Declared[] {
  if (command.commands.length > 0)
    return command.commands.flatMap((child) => declaredIn(child, [...path, child.name()]))
  const flags = command.options.map(({ long, required, optional }) => ({
    name: long ?? '',
    takesValue: required || optional,
  }))
  return [{ path, flags, args: command.registeredArguments.length }]
}

const COMMANDS = declaredIn(
  await createProgram({ out: () => {}, err: () => {} }, async () => Promise.resolve()),
)

/** They run until they are stopped, or change the whole server: their command lines are always invalid. */
const ALWAYS_REFUSED: Readonly<Record<string, readonly string[]>> = {
  up: ['--port', 'x'],
  work: ['--port', 'x'],
  serve: ['--port', 'x'],
  migrate: ['--buckets', '0'],
  roles: ['--role-prefix', '1'],
  'lease add': ['--columns', '1 x'],
}

const text = fc.oneof(
  fc.string({ unit: 'grapheme', maxLength: 30 }),
  fc.string({ unit: 'binary', maxLength: 30 }).map((value) => value.toWellFormed().replaceAll('\0', '')),
  fc.constantFrom(
    '',
    ' ',
    '-',
    '--',
    '-1',
    '0',
    '1',
    '2',
    '1.5',
    '1e99',
    '9'.repeat(400),
    'NaN',
    'constructor',
    '__proto__',
    '__proto__=1',
    '*',
    '=',
    '../../etc/passwd',
    "'; drop table leasehold.outbox; --",
    '"',
    '\u001b[2J',
    '\u009b31m',
    '\u202e',
    '\r\n\t',
    '{"__proto__":1}',
    '[',
    '2026-02-30T00:00:00Z',
    '0000-00-00',
    '999999999d',
    '7d',
    'dead',
    'pending,failed',
    'read',
    'admin',
    'k',
    'order.paid',
    'laptop',
    'concurrency=-1',
    'paused=maybe',
    'x'.repeat(5_000),
    `http://u:${GIVEN}@receiver.example/`,
    'https://127.0.0.1/',
    'https://receiver.example/#fragment',
    'file:///etc/passwd',
    '01a1df9a-a8e7-7000-9250-022dcdc8beba',
    'endpoint',
    'job',
  ),
)

/** None of them leads to another machine. */
const databaseUrl = fc.constantFrom(
  '',
  'nonsense',
  '%',
  `http://u:${GIVEN}@127.0.0.1/x`,
  `postgresql://u:${GIVEN}@127.0.0.1:1/x`,
  `postgresql://u:${GIVEN}@127.0.0.1:99999/x`,
  `postgresql://u:${GIVEN}@127.0.0.1:1/x?sslmode=nonsense`,
)

const header = fc.constantFrom(
  '',
  '=',
  `=${GIVEN}`,
  `Authorization: Bearer ${GIVEN}`,
  `a b=${GIVEN}`,
  `x=${GIVEN}\n`,
  `host=${GIVEN}`,
)

function flagWith({ name, takesValue }: Flag): fc.Arbitrary<readonly string[]> {
  // It would run until it is stopped.
  if (name === '--watch') return fc.constant([name, '--every', '0s'])
  // A slow change would wait.
  if (name === '--rate')
    return fc.constantFrom('', '0', '-1', 'x', '1e3', '100').map((value) => [name, value])
  const value = name === '--database-url' ? databaseUrl : name === '--header' ? header : text
  if (!takesValue)
    return fc.oneof(
      fc.constant([name]),
      value.map((given) => [`${name}=${given}`]),
    )
  return fc.oneof(
    { weight: 4, arbitrary: value.map((given) => [name, given]) },
    value.map((given) => [`${name}=${given}`]),
    fc.constant([name]),
  )
}

function lineOf({ path, flags, args }: Declared): fc.Arbitrary<readonly string[]> {
  const unknown = fc.constantFrom('--nonsense', '--', '-x', '---', '--=x', '--__proto__')
  const known =
    flags.length === 0 ? [] : [{ weight: 6, arbitrary: fc.constantFrom(...flags).chain(flagWith) }]
  const given = fc.array(
    fc.oneof(...known, { weight: 1, arbitrary: unknown.map((flag): readonly string[] => [flag]) }),
    { maxLength: 4 },
  )
  const positional = fc.array(text, { minLength: 0, maxLength: args + 1 })
  const usual = fc.subarray(
    ['--yes', '--reason=a test', '--principal=olga', '--json'].filter((flag) =>
      flags.some(({ name }) => flag.startsWith(name)),
    ),
  )
  return fc
    .tuple(given, positional, usual)
    .map(([some, values, others]) => [...path, ...some.flat(), ...values, ...others])
}

const lines: fc.Arbitrary<readonly string[]> = fc.oneof(
  { weight: 12, arbitrary: fc.constantFrom(...COMMANDS).chain(lineOf) },
  { weight: 1, arbitrary: fc.array(text, { maxLength: 4 }) },
)

/** The refused part comes before a `--` that would make it an argument, and after flags that it overrides. */
function guarded(line: readonly string[]): readonly string[] {
  const found = Object.entries(ALWAYS_REFUSED).find(
    ([name]) => line.slice(0, name.split(' ').length).join(' ') === name,
  )
  const named = line.map((part) =>
    part === 'endpoint' ? known.ids.endpoint : part === 'job' ? known.ids.job : part,
  )
  if (found === undefined) return named
  return [...named.filter((part) => part !== '--'), ...found[1]]
}

// eslint-disable-next-line no-control-regex
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/

/** What to give instead, or where that is described. */
const REMEDY =
  /\b(?:give|say|name|use|choose|leave|goes with|run|correct|must be|declare) |is missing: |The audit has them/i

/** What a command line must never do. */
function mistakes({ code, stdout, stderr }: Called, isChanged: boolean): readonly string[] {
  const output = `${stdout}${stderr}`
  const found: Readonly<Record<string, boolean>> = {
    'another exit code': ![0, 1, 2].includes(code),
    'a stack trace': /unexpected error|^\s+at .+:\d+:\d+\)?$/m.test(output),
    'a secret': secrets.some((secret) => output.includes(secret)),
    // What a command has accepted it may show, such as the name of a job.
    'a credential of an argument': code !== 0 && stderr.includes(GIVEN),
    'characters that control a terminal': CONTROL.test(output),
    'changed something, and failed': code !== 0 && isChanged,
    'a refusal without a remedy': code === 2 && !REMEDY.test(stderr),
    'a failure without a message': code === 1 && output.trim() === '',
  }
  return Object.keys(found).filter((name) => found[name])
}

it(`${RUNS} malformed command lines end with a message and an exit code, change nothing unless they succeed, and show no secret`, async () => {
  let before = await checksums(db)
  const codes: Record<string, number> = {}
  await fc.assert(
    fc.asyncProperty(lines, async (line) => {
      const args = guarded(line)
      const called = await call(args, { input: '' })
      codes[called.code] = (codes[called.code] ?? 0) + 1
      const after = await checksums(db)
      const isChanged = !isDeepStrictEqual(after, before)
      before = after
      expect(
        mistakes(called, isChanged),
        `${JSON.stringify(args)}\n${called.stdout}\n${called.stderr}`,
      ).toEqual([])
    }),
    { ...REPEAT, numRuns: RUNS },
  )
  expect(Object.keys(Object.prototype)).toEqual([])
  // They got far enough to be examined, and some were right by chance.
  for (const code of [0, 1, 2]) expect(codes[code], JSON.stringify(codes)).toBeGreaterThan(RUNS / 50)
}, 600_000)

/** Arguments in which nothing is wrong. */
function argumentsOf(path: readonly string[], count: number): readonly string[] {
  const [group, command] = path
  if (group === 'settings') return ['outbox', 'concurrency=1'].slice(0, count)
  if (command === 'endpoints') return ['endpoint'].slice(0, count)
  return Array.from({ length: count }, () => '1')
}

it('every flag of every command that takes a value refuses an empty one, and names itself and the remedy', async () => {
  const before = await checksums(db)
  const wrong: string[] = []
  for (const { path, flags, args } of COMMANDS) {
    // Where the guard is, it may be refused first.
    if (path.join(' ') in ALWAYS_REFUSED) continue
    const declared = new Set(flags.map(({ name }) => name))
    // An empty tenant is the default one.
    const refusing = flags.filter(
      ({ name, takesValue }) => takesValue && !(path[0] === 'webhooks' && name === '--tenant'),
    )
    for (const { name } of refusing) {
      // Nothing else is wrong. Of a flag that is given twice, the last one counts.
      const needed = ['--reason=a test', '--yes', '--table=app.jobs'].filter((flag) =>
        declared.has(flag.split('=')[0] ?? ''),
      )
      const line = guarded([...path, ...argumentsOf(path, args), ...needed, name, ''])
      const { code, stderr } = await call(line)
      if (code === 0 || !stderr.includes(name) || !REMEDY.test(stderr))
        wrong.push(`${line.join(' ')} → ${code} ${stderr}`)
    }
  }
  expect(wrong).toEqual([])
  expect(await checksums(db)).toEqual(before)
}, 600_000)
