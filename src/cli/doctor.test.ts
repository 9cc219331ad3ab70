import { describe, expect, it } from 'vitest'
import { useExaminedServer } from '../../test/support/examined-server.ts'
import { useCommandLine } from '../../test/support/command-line.ts'
import { makeEvents } from '../../test/support/outbox-rows.ts'
import { CHECKS, examine } from '../doctor/doctor.ts'
import { diagnosisText } from './doctor.ts'

const server = useExaminedServer()
const { call: callDoctor, directory } = useCommandLine('doctor')
const onServer = (): { databaseUrl: string } => ({ databaseUrl: server.url() })

it('doctor prints that nothing was found, and exits with 0', async () => {
  const { code, stdout } = await callDoctor([], onServer())
  expect(code).toBe(0)
  expect(stdout.split('\n').at(-2)).toBe(`0 errors, 0 warnings in ${CHECKS.length} checks`)
})

it('doctor prints errors before warnings, each with its remedy and the statements that repair it, and exits with 1', async () => {
  await makeEvents(server.db(), 100, { status: 'DEAD' })
  await server.asAdmin('drop index leasehold.audit_at')
  const { code, stdout } = await callDoctor([], onServer())
  expect(code).toBe(1)
  expect(
    stdout.startsWith(`ERRORS

schema-indexes: The index leasehold.audit_at is missing.
  Create it. Workers and producers continue meanwhile.
    CREATE INDEX CONCURRENTLY audit_at ON leasehold.audit USING btree (at);

WARNINGS

rows-dead: 100 events of the outbox are dead.
  See why with`),
  ).toBe(true)
  expect(stdout.split('\n').at(-2)).toBe(`1 error, 1 warning in ${CHECKS.length} checks`)
})

it('doctor --json prints the diagnosis as one document', async () => {
  const { code, stdout } = await callDoctor(['--json'], onServer())
  expect(code).toBe(1)
  const document = JSON.parse(stdout) as Awaited<ReturnType<typeof examine>>
  expect(document.findings.map(({ check, severity }) => ({ check, severity }))).toEqual([
    { check: 'schema-indexes', severity: 'error' },
    { check: 'rows-dead', severity: 'warning' },
  ])
  expect(document.checks).toHaveLength(CHECKS.length)
  expect(document.checks.filter(({ ok }) => !ok).map(({ id }) => id)).toEqual(['schema-indexes', 'rows-dead'])
})

it('--fail-on error lets warnings pass, and --ignore leaves out checks', async () => {
  const codeOf = async (...args: readonly string[]): Promise<number> =>
    (await callDoctor(args, onServer())).code
  expect(await codeOf('--fail-on', 'error')).toBe(1)
  expect(await codeOf('--ignore', 'schema-indexes')).toBe(1)
  expect(await codeOf('--ignore', 'schema-indexes', '--fail-on', 'error')).toBe(0)
  expect(await codeOf('--ignore', 'schema-indexes, rows-dead')).toBe(0)
  const { code, stderr } = await callDoctor(['--ignore', 'rows-deaf'], onServer())
  expect(code).toBe(2)
  expect(stderr).toContain('--ignore is "rows-deaf": that is no check; give some of schema-migrations, ')
  expect((await callDoctor(['--fail-on', 'remark'], onServer())).stderr).toContain('--fail-on is "remark"')
})

it('a printed function can be pasted as it is', async () => {
  await server.asAdmin(
    `create or replace function leasehold.wake(name text) returns void language plpgsql as 'begin return; end'`,
  )
  const { stdout } = await callDoctor([], onServer())
  const from = stdout.indexOf('    CREATE OR REPLACE FUNCTION leasehold.wake')
  await server.asAdmin(stdout.slice(from, stdout.indexOf('$function$;', from) + '$function$;'.length))
  expect((await callDoctor([], onServer())).stdout).not.toContain('schema-functions')
})

describe('without a database', () => {
  it.each([
    ['that is not given', { databaseUrl: '' }, 'no embedded PostgreSQL runs'],
    [
      'that does not answer',
      { databaseUrl: 'postgresql://nobody:geheim@127.0.0.1:1/none' },
      'did not answer',
    ],
  ])('%s doctor says so, and exits with 2', async (_, options, says) => {
    const { code, stdout, stderr } = await callDoctor(
      ['--database-wait-ms', '0', '--directory', directory()],
      options,
    )
    expect(code).toBe(2)
    expect(stdout).toBe('')
    expect(stderr).toContain(says)
    expect(stderr).not.toContain('geheim')
  })
})

it('statements are printed so that they can be pasted, and control characters of rows are removed', () => {
  const text = diagnosisText({
    findings: [
      {
        check: 'c',
        severity: 'warning',
        text: 'bad\u001B[31m',
        remedy: 'Mend  it.',
        repair: [
          'create function f() as $$\n  begin  end\n$$',
          "leasehold outbox unblock 'two  spaces'",
          "leasehold outbox unblock 'a\u202Eb'",
          "leasehold outbox unblock 'a\nb'",
        ],
      },
    ],
    checks: [{ id: 'c', title: 't', ok: false, notSeen: 'sessions', remarks: ['It is late.'] }],
  })
  expect(text).toBe(`WARNINGS

c: bad [31m
  Mend it.
    create function f() as $$
      begin  end
    $$;
    leasehold outbox unblock 'two  spaces'
    (a command with characters that a terminal does not show: take it from --json)
    (a command with characters that a terminal does not show: take it from --json)

c: It is late.
c: this role may not see sessions.

0 errors, 1 warning in 1 check
`)
})
