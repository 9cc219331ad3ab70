import { expect, it } from 'vitest'
import { LeaseholdError } from '../errors.ts'
import { createLog } from './log.ts'

function capture(format: 'json' | 'pretty') {
  const lines: string[] = []
  return { lines, log: createLog({ level: 'info', format, write: (text) => void lines.push(text) }) }
}

it('in production an entry is one line of JSON', () => {
  const { lines, log } = capture('json')
  log.info({ part: 'HTTP' }, 'stopped')
  log.debug('not at this level')
  expect(lines).toHaveLength(1)
  expect(lines[0]).toMatch(/\n$/)
  expect(JSON.parse(lines[0] ?? '')).toEqual({
    level: 'info',
    time: expect.stringMatching(/^\d{4}-\d\d-\d\dT/),
    part: 'HTTP',
    msg: 'stopped',
  })
})

it('for a person an entry is one short line', () => {
  const { lines, log } = capture('pretty')
  log.warn({ part: 'HTTP', attempts: 2, list: [1, 2] }, 'slow')
  expect(lines).toEqual([
    expect.stringMatching(/^\d\d:\d\d:\d\d warn {2}slow {2}part=HTTP {2}attempts=2 {2}list=\[ 1, 2 \]\n$/),
  ])
})

it('an error on purpose is told by its message, any other with its stack', () => {
  const { lines, log } = capture('pretty')
  log.error({ err: new LeaseholdError('DATABASE_CLOSED', 'It is closed.') }, 'failed')
  log.error({ err: new Error('surprise') }, 'failed')
  expect(lines[0]).toMatch(/failed: It is closed\.\n$/)
  expect(lines[1]).toMatch(/failed\nError: surprise\n\s+at /)
})

it.each(['json', 'pretty'] as const)('a secret is in no line (%s)', (format) => {
  const { lines, log } = capture(format)
  const url = 'postgresql://user:s3cret@host/db'
  log.info(
    { password: 's3cret', endpoint: { secret: 's3cret', signature: 's3cret' }, url },
    `dialling ${url}`,
  )
  const row = Object.assign(new Error(`refused by ${url}`), {
    detail: 'Key (token)=(s3cret) exists.',
    code: '23505',
  })
  log.error({ err: row }, 'failed')
  expect(lines).toHaveLength(2)
  expect(lines.join('')).not.toContain('s3cret')
  expect(lines.join('')).toContain('user:***@host/db')
})
