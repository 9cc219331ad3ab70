import { expect, it } from 'vitest'
import { namesOf, refuseUnknownOptions, suggestion, unknownNames } from './nearest.ts'

interface Options {
  readonly port: number
  readonly databaseUrl?: string
}

const NAMES = namesOf<Options>({ port: true, databaseUrl: true })

it('known names are accepted, however many of them are given', () => {
  expect(unknownNames({}, NAMES)).toEqual([])
  refuseUnknownOptions('serve', { port: 1, databaseUrl: undefined }, NAMES)
})

it('each unknown name is a problem with the name that was probably meant, or with all of them', () => {
  expect(unknownNames({ prot: undefined, database_url: 'x', weather: 1 }, NAMES)).toEqual([
    'unknown option prot (did you mean port?)',
    'unknown option database_url (did you mean databaseUrl?)',
    'unknown option weather (the options are port, databaseUrl)',
  ])
  expect(unknownNames({ prot: 1 }, NAMES, 'field')).toEqual(['unknown field prot (did you mean port?)'])
})

it('a refusal names the function and every problem', () => {
  expect(() => refuseUnknownOptions('serve', { prot: 1, weather: 2 }, NAMES)).toThrow(
    'The options of serve: unknown option prot (did you mean port?); unknown option weather (the options are port, databaseUrl). Correct the options named.',
  )
})

it.each([
  [undefined, 'a value of type undefined'],
  [null, 'null'],
  ['port', 'a value of type string'],
  [[], 'a list'],
])('options that are no object are refused: %j', (given, shown) => {
  expect(() => refuseUnknownOptions('serve', given, NAMES)).toThrow(
    `The options of serve: ${shown} was given, but they must be an object (the options are port, databaseUrl).`,
  )
})

it('names that JavaScript objects inherit are not taken for known ones', () => {
  expect(unknownNames({ toString: 1 }, NAMES)).toHaveLength(1)
  expect(suggestion('constructor', NAMES)).toBe('the names are port, databaseUrl')
})
