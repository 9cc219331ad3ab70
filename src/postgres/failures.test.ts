import { DatabaseError } from 'pg'
import { expect, it } from 'vitest'
import { LeaseholdError } from '../errors.ts'
import { isStalePreparedStatement, isUnavailable, pauseAfter, unavailable } from './failures.ts'

function sent(code: string, severity = 'FATAL'): DatabaseError {
  return Object.assign(new DatabaseError('message', 7, 'error'), { code, severity })
}

function system(code: string, syscall = 'connect'): Error {
  return Object.assign(new Error(code), { code, syscall })
}

it.each([
  sent('57P01'),
  sent('57P02'),
  sent('57P03'),
  sent('53300'),
  sent('08006', 'ERROR'),
  sent('08P01'),
  system('ECONNREFUSED'),
  system('ECONNRESET', 'read'),
  system('EPIPE', 'write'),
  system('ENOENT'),
  new AggregateError([system('ECONNREFUSED'), system('ENETUNREACH')]),
  new Error('Connection terminated unexpectedly'),
  new LeaseholdError('DATABASE_UNAVAILABLE', 'away'),
])('the database is unavailable after the error %s', (error) => {
  expect(isUnavailable(error)).toBe(true)
})

it.each([
  sent('28P01'),
  sent('3D000'),
  sent('08P01', 'ERROR'),
  sent('23505', 'ERROR'),
  sent('57014', 'ERROR'),
  system('ENOENT', 'open'),
  new AggregateError([]),
  new AggregateError([system('ECONNREFUSED'), new Error('something else')]),
  new LeaseholdError('QUERY_TIMEOUT', 'slow'),
  new Error('anything'),
  'ECONNREFUSED',
  undefined,
])('the database is not considered unavailable after %s', (error) => {
  expect(isUnavailable(error)).toBe(false)
})

it('an error of another copy of pg is recognised by its fields, not by its class', () => {
  const foreign = Object.assign(new Error('terminating connection'), { code: '57P01', severity: 'FATAL' })
  expect(isUnavailable(foreign)).toBe(true)
})

it('an error 0A000 means a stale prepared statement only if the plan cache raised it', () => {
  expect(
    isStalePreparedStatement(Object.assign(sent('0A000', 'ERROR'), { routine: 'RevalidateCachedQuery' })),
  ).toBe(true)
  expect(isStalePreparedStatement(sent('0A000', 'ERROR'))).toBe(false)
})

it('the message contains the reason of every address that was tried, and the original error is the cause', () => {
  const cause = new AggregateError([system('ECONNREFUSED'), system('ENETUNREACH')])
  const error = unavailable(cause)
  expect(error).toMatchObject({ code: 'DATABASE_UNAVAILABLE', cause })
  expect(error.message).toContain('ECONNREFUSED')
  expect(error.message).toContain('ENETUNREACH')
  expect(unavailable(error)).toBe(error)
})

const backOff = { firstMs: 100, longestMs: 5_000 }

it('the pause doubles with every failure, up to the longest', () => {
  const pauses = [1, 2, 3, 6, 7, 2_000].map((failures) => pauseAfter(failures, backOff, () => 1))
  expect(pauses).toEqual([100, 200, 400, 3_200, 5_000, 5_000])
})

it('at most half of the pause is random', () => {
  expect([0, 0.5, 1].map((chance) => pauseAfter(3, backOff, () => chance))).toEqual([200, 300, 400])
})
