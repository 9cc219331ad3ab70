import { tmpdir } from 'node:os'
import type { Command } from 'commander'
import { describe, expect, it } from 'vitest'
import { type Called, callLeasehold } from '../../test/support/command-line.ts'
import { OPERATIONS } from '../server/api/resources/index.ts'
import { createProgram } from './program.ts'

async function leasehold(...args: readonly string[]): Promise<Called> {
  return callLeasehold(args, { workingDirectory: tmpdir() })
}

describe('the help', () => {
  it('the help is printed on stderr, with exit code 2, when no command is given', async () => {
    const { code, stdout, stderr } = await leasehold()
    expect([code, stdout]).toEqual([2, ''])
    for (const command of ['up', 'work', 'migrate', 'status', 'outbox', 'webhooks', 'sync', 'lease']) {
      expect(stderr).toMatch(new RegExp(`^  ${command} `, 'm'))
    }
    expect(stderr).toContain('LEASEHOLD_PORT')
    expect(stderr).toContain('Exit codes')
  })

  it('the help is printed on stdout, with exit code 0, when it is asked for', async () => {
    const { code, stdout, stderr } = await leasehold('work', '--help')
    expect([code, stderr]).toEqual([0, ''])
    expect(stdout).toContain('--only <names>')
    expect(stdout).toMatch(/Settings:\n +--database-url <value>/)
  })

  it('the help of a group lists its commands when none of them is given', async () => {
    const { code, stderr } = await leasehold('lease')
    expect(code).toBe(2)
    expect(stderr).toMatch(/^ {2}add /m)
  })

  it.each([[['help', 'lease']], [['lease', 'help']], [['lease', '--help']], [['help', '--', 'lease']]])(
    '%j shows the commands of the group, which is loaded for it',
    async (args) => {
      const { code, stdout } = await leasehold(...args)
      expect(code).toBe(0)
      expect(stdout).toMatch(/^ {2}add /m)
    },
  )

  it('the help of a command is the same, however it is asked for', async () => {
    const { stdout } = await leasehold('outbox', 'list', '--help')
    expect(stdout).toContain('--status <names>')
    expect((await leasehold('outbox', 'help', 'list')).stdout).toBe(stdout)
  })
})

describe('operations', () => {
  it.each(OPERATIONS.map((each) => [each.command, each] as const))(
    '%s is a command with the summary, and says what each of its options is',
    async (path, { summary }) => {
      const program = await createProgram({ out: () => {}, err: () => {} }, async () => Promise.resolve())
      const command = path
        .split(' ')
        .reduce<Command | undefined>((at, word) => at?.commands.find((each) => each.name() === word), program)
      expect(command?.description().toLowerCase()).toBe(summary.toLowerCase())
      expect(command?.options.filter(({ description }) => description === '')).toEqual([])
    },
  )
})

describe('wrong usage', () => {
  it.each([
    [
      ['statsu'],
      "unknown command 'statsu'\n(Did you mean status?)\nRun `leasehold --help` for the commands.",
    ],
    [['lease', 'give'], "unknown command 'give'\nRun `leasehold lease --help` for the commands."],
    [
      ['up', '--prot', '1'],
      "unknown option '--prot'\n(Did you mean --port?)\nRun `leasehold up --help` for the arguments and options.",
    ],
    [['up', 'now'], 'Run `leasehold up --help` for the arguments and options.'],
    [
      ['work', '--directory', '.leasehold'],
      "unknown option '--directory'\nRun `leasehold work --help` for the arguments and options.",
    ],
    [['migrate', '--schema'], "option '--schema <value>' argument missing\nRun `leasehold migrate --help`"],
  ])('%j is an error that names the mistake and the help to read', async (args, message) => {
    const { code, stdout, stderr } = await leasehold(...args)
    expect([code, stdout]).toEqual([2, ''])
    expect(stderr).toContain(message)
  })
})

it('an invalid setting is an error with exit code 1 that names the setting, its source, the value and the rule', async () => {
  const { code, stdout, stderr } = await leasehold('up', '--port', '99999')
  expect([code, stdout]).toEqual([1, ''])
  expect(stderr).toBe(
    "leasehold: SETTING_INVALID: port (--port) is '99999', but must be a whole number from 0 to 65535; 0 takes any free port.\n",
  )
})
