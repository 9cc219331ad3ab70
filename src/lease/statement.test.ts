import { describe, expect, it } from 'vitest'
import { leaseTable } from './declaration.ts'
import { parameters, statement } from './statement.ts'

const table = leaseTable({
  table: 'public.jobs',
  claimable: 'not done',
  outcomes: { done: { done: 'true' } },
})

/** The statement without its tag. */
function laidOut(body: string): string {
  return statement(table, 'test', parameters(), body).text.replace(/^.*\n/, '')
}

const words = (text: string): string => text.replaceAll(/\s+/g, ' ')

describe('a long line', () => {
  it('is broken where the fewest parts are open', () => {
    const long = 'a_rather_long_name_of_a_column'
    const inner = `(${long} = 2 or ${long} = 3 and ${long} = 4)`
    expect(laidOut(`select 1 from jobs where ${long} = 1 and ${inner} and ${long} = 5`)).toBe(
      `select 1 from jobs where ${long} = 1\n  and ${inner}\n  and ${long} = 5`,
    )
  })

  it('keeps the names of a list with their values', () => {
    const fields = ['first', 'second', 'third', 'fourth'].map(
      (name) => `'${name}', the_${name}_of_many_columns`,
    )
    const text = laidOut(`set history = jsonb_build_object(${fields.join(', ')})`)
    expect(words(text)).toBe(`set history = jsonb_build_object(${fields.join(', ')})`)
    expect(text.split('\n').every((line) => !/'\w+',$/.test(line))).toBe(true)
    expect(text).toContain('\n')
  })

  it.each([
    ['a text', `'${'one, two and three '.repeat(20)}'`],
    ['a text of several lines', `'${'one, two and three '.repeat(10)}\n${'four, five or six '.repeat(10)}'`],
    ['a text with a quote', `'${"it''s one, two and three ".repeat(20)}'`],
    ['a quoted name', `"${'one, two and three '.repeat(20)}"`],
    ['a text with backslashes', `E'${"it\\'s one, two and three ".repeat(20)}'`],
    ['a text between dollars', `$x$${'one, two and three '.repeat(20)}$x$`],
  ])('is not broken within %s', (_, quoted) => {
    const text = laidOut(`set note = coalesce(note, ${quoted}), state = 'done'`)
    expect(text).toContain(quoted)
    expect(words(text)).toBe(words(`set note = coalesce(note, ${quoted}), state = 'done'`))
  })
})
