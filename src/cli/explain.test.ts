/** `explain` of every group of commands; the commands that it shows are run as they are shown. */
import { beforeEach, describe, expect, it } from 'vitest'
import { useCommandLine } from '../../test/support/command-line.ts'
import { useConfigFiles } from '../../test/support/config-files.ts'
import { makeEvents } from '../../test/support/outbox-rows.ts'
import { insertJobs, WORK_DDL, WORK_TABLE } from '../../test/support/work-table.ts'
import { makeEndpoint } from '../../test/support/webhook-endpoints.ts'
import { makeDeliveries } from '../../test/support/webhook-rows.ts'
import type { Explanation, Reason } from '../operations/explain/reasons.ts'

const { db, call, json } = useCommandLine()
const { directoryWith } = useConfigFiles()

beforeEach(async () => {
  await db.query({
    text: `truncate leasehold.outbox, leasehold.webhook_outbox, leasehold.webhook_endpoints, leasehold.sync_jobs,
  leasehold.sync_checkpoints, leasehold.sync_job_chunks, leasehold.audit, leasehold.workers, leasehold.settings restart identity`,
  })
})

async function explain(args: readonly string[], workingDirectory?: string): Promise<Explanation> {
  const options = workingDirectory === undefined ? {} : { workingDirectory }
  // What --json prints is an explanation, with moments as texts.
  return (await json(args, options)) as Explanation
}

/** Runs a command line as a shell would split it. */
async function runShown({ command = '' }: Partial<Reason>): Promise<number> {
  const words = [...command.matchAll(/'((?:[^']|'\\'')*)'|(\S+)/g)].map(
    ([, quoted, plain]) => quoted?.replaceAll(String.raw`'\''`, "'") ?? plain ?? '',
  )
  const [program, ...args] = words
  expect(program).toBe('leasehold')
  const { code, stderr } = await call(args)
  expect(stderr).toBe('')
  return code
}

describe('leasehold outbox explain', () => {
  it('prints the state, and each reason with the command that would change it', async () => {
    await makeEvents(db, 1, { attempts: 2, error: 'the broker is\nnot there', agoMs: 1_000 })
    await db.query({ text: `update leasehold.outbox set available_at = now() + interval '1 hour'` })
    const { code, stdout } = await call(['outbox', 'explain', '1'])
    expect(code).toBe(0)
    expect(stdout.split('\n')).toEqual([
      'leasehold.outbox 1: waiting',
      '',
      expect.stringMatching(
        /^retryWait: 2 of 25 attempts have failed, and the next one is due at \S+Z \(in 60 min\): the broker is not there\.$/,
      ),
      "  leasehold outbox retry 1 --reason '…'",
      '',
      'noWorker: No worker process that is alive runs the worker outbox.',
      '  leasehold work --only outbox',
      '',
    ])
  })

  it('prints the same as JSON, and the commands for an event that waits work', async () => {
    await makeEvents(db, 1, { attempts: 2 })
    await db.query({ text: `update leasehold.outbox set available_at = now() + interval '1 hour'` })
    const { reasons, ...others } = await explain(['outbox', 'explain', '1'])
    expect(others).toEqual({ table: 'leasehold.outbox', id: '1', state: 'waiting' })
    expect(reasons[0]).toEqual({
      code: 'retryWait',
      text: expect.any(String) as string,
      until: expect.stringMatching(/Z$/) as string,
      command: "leasehold outbox retry 1 --reason '…'",
    })
    expect(await runShown(reasons[0] ?? {})).toBe(0)
    expect(await explain(['outbox', 'explain', '1'])).toMatchObject({ state: 'claimable' })
  })

  it.each(["it's a key", '-dash', 'plain', 'two words'])(
    'the commands for the parked key %j and its event work',
    async (key) => {
      await makeEvents(db, 1, { status: 'DEAD', parked: true, key: `$k$${key}$k$`, error: 'boom' })
      await makeEvents(db, 1, { key: `$k$${key}$k$` })
      const [reason] = (await explain(['outbox', 'explain', '2'])).reasons
      expect(reason?.code).toBe('keyParked')
      expect(await runShown(reason ?? {})).toBe(0)
      expect(await explain(['outbox', 'explain', '2'])).toMatchObject({ state: 'claimable' })
      const [dead] = (await explain(['outbox', 'explain', '1'])).reasons
      expect(dead).toMatchObject({ code: 'dead', command: "leasehold outbox replay 1 --reason '…'" })
      expect(await runShown(dead ?? {})).toBe(0)
      expect(await explain(['outbox', 'explain', '1'])).toMatchObject({ state: 'claimable' })
    },
  )

  it.each([
    ['two  spaces', "'two  spaces'"],
    ['line\nand \u202Ebidi', String.raw`$'line\012and \342\200\256bidi'`],
  ])('prints the command for the parked key %j, and not for another key', async (key, argument) => {
    await makeEvents(db, 1, { status: 'DEAD', parked: true, key: `$k$${key}$k$`, error: 'boom' })
    const { stdout } = await call(['outbox', 'explain', '1'])
    expect(stdout).toContain(`\n  leasehold outbox unblock --reason '…' -- ${argument}\n`)
    const [, dead = ''] = stdout.split('dead: ')
    expect(dead.split('\n')).toHaveLength(3)
  })

  it('the command that resumes a paused worker works', async () => {
    await makeEvents(db, 1)
    await db.query({
      text: `insert into leasehold.workers (id, host, pid, version, roles, declared, stopped_at) values ('w', 'h', 1, '0', '{outbox}', '{"outbox": {}}', now())`,
    })
    expect((await call(['settings', 'pause', 'outbox'])).code).toBe(0)
    const paused = (await explain(['outbox', 'explain', '1'])).reasons.find(
      ({ code }) => code === 'workersPaused',
    )
    expect(await runShown(paused ?? {})).toBe(0)
    const { reasons } = await explain(['outbox', 'explain', '1'])
    expect(reasons.map(({ code }) => code)).toEqual(['noWorker'])
  })

  it('refuses an id that no event has, and one that no event can have', async () => {
    expect(await call(['outbox', 'explain', '7'])).toMatchObject({
      code: 1,
      stderr: expect.stringContaining('EVENT_NOT_FOUND: No event has the id 7.') as string,
    })
    expect(await call(['outbox', 'explain', 'x'])).toMatchObject({ code: 2, stdout: '' })
  })
})

it('leasehold webhooks explain: the command that enables a disabled endpoint works', async () => {
  const endpoint = await makeEndpoint(db, { disabledReason: 'gone' })
  await makeDeliveries(db, endpoint, 1)
  const { reasons } = await explain(['webhooks', 'explain', '1'])
  expect(reasons.map(({ code }) => code)).toEqual(['endpointDisabled', 'noSecretKey', 'noWorker'])
  expect(await runShown(reasons[0] ?? {})).toBe(0)
  expect((await explain(['webhooks', 'explain', '1'])).reasons[0]?.code).toBe('noSecretKey')
})

it.each([
  ['h 1', "1 'h 1'"],
  ['-h', "-- 1 '-h'"],
])(
  'leasehold sync explain: of a job, and of the chunk %j by the command that is shown',
  async (hash, args) => {
    await db.query({
      text: `insert into leasehold.sync_jobs (definition, matrix_id, planned_at, next_check_at) values ('d', 'm', now(), now() + interval '1 hour');
insert into leasehold.sync_checkpoints (matrix_id, chunk_hash, definition, chunk_query) values ('m', '${hash}', 'd', '{}');
insert into leasehold.sync_job_chunks (job_id, matrix_id, chunk_hash, skipped) values (1, 'm', '${hash}', false)`,
    })
    const [reason] = (await explain(['sync', 'explain', '1'])).reasons
    expect(reason).toMatchObject({ code: 'waitsForChunks', command: `leasehold sync explain ${args}` })
    expect(await runShown(reason ?? {})).toBe(0)
    const { stdout } = await call(['sync', 'explain', '--json', '--', '1', hash])
    expect(JSON.parse(stdout)).toMatchObject({
      table: 'leasehold.sync_checkpoints',
      id: JSON.stringify(['m', hash]),
      state: 'claimable',
      reasons: [{ code: 'noWorker' }],
    })
    expect((await call(['sync', 'explain', 'x'])).code).toBe(2)
  },
)

describe('leasehold lease explain', () => {
  const config = `import { leaseTable } from ${JSON.stringify(new URL('../../dist/index.js', import.meta.url).href)}
const table = leaseTable(${JSON.stringify(WORK_TABLE)})
const pairs = leaseTable({ table: 'public.pairs', id: ['a', 'b'], claimable: 'true' })
export default { workers: [
  { name: 'printing', table, handle: async () => undefined },
  { name: 'pairing', table: { ...pairs, outcomes: { ...pairs.outcomes, retry: table.outcomes.retry, dead: table.outcomes.dead, done: table.outcomes.done } }, handle: async () => undefined },
] }`

  it.each(['public.jobs', 'jobs', 'printing'])('explains a row of the table %s', async (table) => {
    await db.query({ text: `drop table if exists public.jobs, public.runs; ${WORK_DDL}` })
    const [id = ''] = await insertJobs(db, 1)
    const directory = await directoryWith(config)
    expect(await explain(['lease', 'explain', '--table', table, id], directory)).toMatchObject({
      table: 'public.jobs',
      id,
      state: 'claimable',
      reasons: [{ code: 'noWorker', command: 'leasehold work --only printing' }],
    })
    const tried = await call(['lease', 'explain', '--table', table, id, '--try'], {
      workingDirectory: directory,
    })
    expect(tried).toMatchObject({ code: 0, stderr: '' })
  })

  it('takes the values of several id columns', async () => {
    await db.query({
      text: `create table if not exists public.pairs (a int, b text, lease_owner text, lease_until timestamptz, lease_token bigint, primary key (a, b));
insert into public.pairs values (1, 'x y') on conflict do nothing`,
    })
    const directory = await directoryWith(config)
    const pair = await explain(['lease', 'explain', '--table', 'pairing', '1', 'x y'], directory)
    expect(pair).toMatchObject({ table: 'public.pairs', id: '["1","x y"]' })
    const args = ['lease', 'explain', '--table', 'pairing', '1', 'x', 'y']
    expect(await call(args, { workingDirectory: directory })).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('give the values of a, b.') as string,
    })
  })

  it('refuses a table that no worker is declared for, and names those that there are', async () => {
    const directory = await directoryWith(config)
    expect(
      await call(['lease', 'explain', '--table', 'nowhere', '1'], { workingDirectory: directory }),
    ).toMatchObject({
      code: 2,
      stderr: expect.stringContaining(
        '--table is "nowhere": give one of those in leasehold.config: public.jobs (printing), public.pairs (pairing).',
      ) as string,
    })
    expect((await call(['lease', 'explain', '--table', 'nowhere', '1'])).stderr).toContain(
      'declares no workers',
    )
  })
})
