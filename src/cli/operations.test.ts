/** The commands for operators that concern no application: keys, settings, changes, audit, completion. */
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { Client } from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { type Called, useCommandLine } from '../../test/support/command-line.ts'
import { useProcesses } from '../../test/support/processes.ts'
import { makeEvents } from '../../test/support/outbox-rows.ts'
import { describeSchema } from '../postgres/index.ts'

const { spawnNode } = useProcesses()
const { url, db, directory, call: callWith } = useCommandLine()

async function call(...args: readonly string[]): Promise<Called> {
  return callWith(args)
}

beforeEach(async () => {
  await db.query({
    text: 'truncate leasehold.outbox, leasehold.api_keys, leasehold.workers restart identity cascade',
  })
  await db.query({ text: 'truncate leasehold.audit restart identity' })
})

describe('keys', () => {
  it('create prints the key once; list shows everything but the key; revoke refuses it by its name', async () => {
    const created = await call('keys', 'create', 'ci', '--role', 'operate', '--expires', '90d')
    expect(created).toMatchObject({
      code: 0,
      stdout: expect.stringMatching(/^lhk_[0-9a-f]{32}_[\w-]{43}\n$/),
    })
    const listed = await call('keys', 'list')
    expect(listed.stdout).toMatch(/^ci +operate +valid +in 90 d +never +the account /m)
    expect(listed.stdout).not.toContain(created.stdout.trim().slice(-43))
    const stored = await db.query({ text: 'select hash from leasehold.api_keys' })
    expect(JSON.stringify(stored.rows)).not.toContain(created.stdout.trim().slice(-43))
    expect(await call('keys', 'revoke', 'ci', '--reason', 'lost')).toMatchObject({
      code: 0,
      stdout: 'Revoked ci.\n',
    })
    expect((await call('keys', 'list')).stdout).toMatch(/^ci +operate +revoked/m)
    const { rows } = await db.query({
      text: 'select principal, action, details from leasehold.audit order by id',
    })
    expect(rows).toMatchObject([
      { principal: 'the account', action: 'keys.create', details: { name: 'ci', role: 'operate' } },
      { principal: 'the account', action: 'keys.revoke', details: { name: 'ci', reason: 'lost' } },
    ])
  })

  it.each([
    [['--role', 'owner'], 2, /--role is "owner": give one of read, operate, admin/],
    [['--role', 'admin', '--tenant', 'acme'], 2, /tenant is "acme".*admin has no tenant/],
    [['--expires', '2020-01-01'], 2, /expiresAt is .*Give a time in the future/],
    [['--expires', 'soon'], 2, /--expires is "soon"/],
  ])('create refuses %j, and creates nothing', async (flags, code, message) => {
    const refused = await call('keys', 'create', 'ci', ...flags)
    expect(refused).toMatchObject({ code, stdout: '' })
    expect(refused.stderr).toMatch(message)
    expect((await db.query({ text: 'select from leasehold.api_keys' })).rowCount).toBe(0)
  })

  it('a name is used once, also after its key was revoked', async () => {
    await call('keys', 'create', 'ci')
    await call('keys', 'revoke', 'ci')
    const again = await call('keys', 'create', 'ci')
    expect(again).toMatchObject({ code: 1, stderr: expect.stringContaining('STATE_CONFLICT') })
    expect(await call('keys', 'revoke', 'other')).toMatchObject({
      code: 1,
      stderr: expect.stringContaining('No key has the id or the name other'),
    })
  })
})

describe('lists', () => {
  it('audit shows who has done what and why, and the flag that shows the next page', async () => {
    await call('keys', 'create', 'one')
    await call('keys', 'revoke', 'one', '--reason', 'lost')
    const first = await call('audit', '--limit', '1', '--principal', 'the account')
    expect(first.stdout).toMatch(/^ID +WHEN +WHO +ACTION +TARGET +REASON\n2 .* keys\.revoke .* lost\n/)
    const [, next = ''] = /--before (\S+) shows the next ones/.exec(first.stdout) ?? []
    const second = await call('audit', '--before', next)
    expect(second.stdout).toContain('keys.create')
    expect(second.stdout).not.toContain('keys.revoke')
  })

  it('a search reads on where a page of the server ends, until it has as many rows as were asked for', async () => {
    await db.query({
      text: `insert into leasehold.audit (principal, action, details)
select case when i in (1, 2) then 'olga' else 'others' end, 'test', '{}' from generate_series(1, 100003) as i`,
    })
    const { stdout } = await call('audit', '--principal', 'olga', '--limit', '2', '--json')
    expect(JSON.parse(stdout).items.map(({ id }: { id: string }) => id)).toEqual(['2', '1'])
  })

  it('an empty list says whether there is nothing at all', async () => {
    expect((await call('audit')).stdout).toBe('The audit is empty.\n')
    expect((await call('audit', '--target', 'x')).stdout).toBe('No such entries.\n')
    expect((await call('changes', 'list', '--limit', '5')).stdout).toBe('There was no bulk change.\n')
    expect((await call('keys', 'list')).stdout).toContain('leasehold keys create')
  })

  it.each([
    [
      ['audit', '--from', 'soon'],
      '--from is "soon": give a time such as 2026-03-01T12:00:00Z, or how long ago it was',
    ],
    [
      ['audit', '--limit', '0', '--before', 'x'],
      '--limit is 0: give a whole number from 1 to 1,000; --before is "x"',
    ],
    [['changes', 'show', 'x'], '<id> is "x": give a uuid.'],
  ])('%j names what is wrong, and what to give instead', async (args, message) => {
    expect(await call(...args)).toMatchObject({
      code: 2,
      stdout: '',
      stderr: expect.stringContaining(message),
    })
  })
})

describe('settings', () => {
  it('set changes settings of a worker that is known, pause and resume pause it, and list shows them', async () => {
    await db.query({
      text: `insert into leasehold.workers (id, host, pid, version, roles, declared)
values ('w1', 'h', 1, '1', '{outbox}', '{"outbox": {"leaseMs": 30000}}')`,
    })
    expect(await call('settings', 'set', 'outbox', 'concurrency=20', 'leaseMs=60000')).toMatchObject({
      code: 0,
      stdout: expect.stringContaining('concurrency=20'),
    })
    await call('settings', 'pause', 'outbox')
    expect((await call('settings', 'list')).stdout).toMatch(/^outbox +(?=.*concurrency=20)(?=.*paused=true)/m)
    await call('settings', 'resume', 'outbox')
    await call('settings', 'set', 'outbox', 'leaseMs=')
    const { stdout } = await call('settings', 'list', '--json')
    expect(JSON.parse(stdout)).toMatchObject([
      { name: 'outbox', value: { concurrency: 20 }, changedBy: 'the account' },
    ])
    expect(JSON.parse(stdout)[0].value).toEqual({ concurrency: 20 })
  })

  it.each([
    ['outbox', 'concurrency', /"concurrency" is not a setting: give its name and a number/],
    ['nobody', 'concurrency=1', /There is no worker named "nobody"/],
  ])('set %s %s is refused', async (worker, setting, message) => {
    const refused = await call('settings', 'set', worker, setting)
    expect(refused.code).not.toBe(0)
    expect(refused.stderr).toMatch(message)
  })
})

describe('give-up, changes and audit', () => {
  it('give-up makes failing events dead and lets their keys go on; changes and audit show it', async () => {
    await makeEvents(db, 3, { key: `'customer'`, attempts: 2 })
    await makeEvents(db, 1)
    const given = await call('outbox', 'give-up', '--status', 'pending', '--reason', 'a test', '--yes')
    expect(given).toMatchObject({ code: 0, stdout: expect.stringContaining('Given up 3 events') })
    const { rows } = await db.query({
      text: 'select status, parked, lock_token from leasehold.outbox order by id',
    })
    expect(rows).toMatchObject([
      { status: 'DEAD', parked: false, lock_token: '1' },
      { status: 'DEAD', lock_token: '1' },
      { status: 'DEAD', lock_token: '1' },
      { status: 'PENDING' },
    ])
    const listed = await call('changes', 'list', '--json')
    const { items: changes } = JSON.parse(listed.stdout)
    expect(changes).toMatchObject([
      { action: 'outbox.giveUp', state: 'finished', changed: 3, isBackground: false },
    ])
    expect((await call('changes', 'show', changes[0].id)).stdout).toMatch(
      /State +finished\n.*Changed +3 of 3/,
    )
    expect(await call('changes', 'cancel', changes[0].id)).toMatchObject({
      code: 1,
      stderr: expect.stringContaining('has ended'),
    })
    expect((await call('audit', '--action', 'outbox.*')).stdout).toContain('outbox.giveUp')
    expect((await call('audit', '--principal', 'somebody else')).stdout).not.toContain('outbox.giveUp')
  })

  it('give-up of a single event that never failed needs its id', async () => {
    await makeEvents(db, 1)
    expect(
      (await call('outbox', 'give-up', '--status', 'pending', '--reason', 'x', '--yes')).stdout,
    ).toContain('none matches')
    expect((await call('outbox', 'give-up', '1', '--reason', 'x')).code).toBe(0)
    expect((await call('outbox', 'give-up', '1', '--reason', 'x')).stdout).toContain('it is DEAD already')
  })
})

describe('status --watch', () => {
  it('prints a document for each update until it is told to stop, as what it shows changes', async () => {
    const process = spawnNode('dist/cli/main.js', ['status', '--watch', '--every', '50ms', '--json'], {
      cwd: directory(),
      env: { DATABASE_URL: url },
    })
    const pending = (line: string): unknown => line.startsWith('{') && JSON.parse(line).outbox.counts.pending
    await process.line((line) => JSON.stringify(pending(line)) === '{"count":0,"exact":true}')
    await makeEvents(db, 3)
    await process.line((line) => JSON.stringify(pending(line)) === '{"count":3,"exact":true}')
    expect(await process.kill('SIGINT')).toEqual({ code: 0, signal: null })
  })

  it('--every without --watch is refused', async () => {
    expect(await call('status', '--every', '1s')).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('--watch'),
    })
  })
})

it('migrate and roles print one document with --json', async () => {
  expect(JSON.parse((await call('migrate', '--json')).stdout)).toMatchObject({
    schema: 'leasehold',
    applied: [],
    missingRoles: [],
  })
  const { roles } = JSON.parse((await call('roles', '--json')).stdout)
  expect(roles).toContain('leasehold_api')
})

describe('migrate --print', () => {
  const whole = 'printed_whole'
  const parts = 'printed_in_parts'
  let client: Client
  beforeAll(async () => {
    client = new Client({ connectionString: url })
    await client.connect()
  })
  afterAll(async () => client.end())

  it('the printed SQL leaves the schema and the ledger that migrate leaves, and the search_path as it was', async () => {
    await client.query('set search_path to public')
    await client.query(
      (await callWith(['migrate', '--print', '--schema', whole], { databaseUrl: '' })).stdout,
    )
    expect((await client.query('show search_path')).rows).toEqual([{ search_path: 'public' }])
    expect(await describeSchema(db, whole)).toBe(await describeSchema(db, 'leasehold'))
    expect(JSON.parse((await call('migrate', '--schema', whole, '--json')).stdout)).toMatchObject({
      applied: [],
      ahead: [],
    })
    const { findings } = JSON.parse((await call('doctor', '--schema', whole, '--json')).stdout)
    expect(findings.filter(({ check }: { check: string }) => check.startsWith('schema-'))).toEqual([])
  })

  it('--after prints what a database of that version lacks', async () => {
    const { stdout: all } = await call('migrate', '--print', '--schema', parts)
    await client.query(all.slice(0, all.indexOf('-- 006_roles.sql')))
    await client.query((await call('migrate', '--print', '--after', '5', '--schema', parts)).stdout)
    expect(await describeSchema(db, parts)).toBe(await describeSchema(db, 'leasehold'))
  })

  it.each([
    [['--print', '--buckets', '64'], 2, '--print prints the migrations alone'],
    [['--after', '1'], 2, '--after belongs to --print'],
    [['--print', '--after', '1000'], 1, 'Give a version of this release, from 0 to '],
  ])('refuses %j', async (flags, code, message) => {
    expect(await call('migrate', ...flags)).toMatchObject({
      code,
      stdout: '',
      stderr: expect.stringContaining(message),
    })
  })
})

describe('completion', () => {
  it.each([
    [
      ['leasehold', ''],
      ['outbox', 'serve', '--help'],
    ],
    [
      ['leasehold', 'outbox', ''],
      ['replay', 'give-up'],
    ],
    [['leasehold', 'outbox', 'list', '--sta'], ['--status']],
    [['leasehold', 'webhooks', 'endpoints', 'ro'], ['rotate']],
    [['leasehold', '--unknown', 'keys', 'c'], ['create']],
  ])('a real bash completes %j with %j', async (words, expected) => {
    const { stdout: script } = await call('completion', 'bash')
    const line = words.map((word) => `'${word}'`).join(' ')
    const { stdout } = await promisify(execFile)('bash', [
      '-c',
      `${script}\nCOMP_WORDS=(${line}); COMP_CWORD=${words.length - 1}; _leasehold; echo "\${COMPREPLY[@]}"`,
    ])
    expect(stdout.split(/\s+/)).toEqual(expect.arrayContaining(expected))
  })

  it('zsh and fish get every command, with its description', async () => {
    for (const shell of ['zsh', 'fish']) {
      const { stdout } = await call('completion', shell)
      expect(stdout).toContain('outbox give-up')
      expect(stdout).toContain('run the HTTP API alone')
    }
    expect(await call('completion', 'tcsh')).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('bash, zsh, fish'),
    })
  })
})
