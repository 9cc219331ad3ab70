import { DatabaseError } from 'pg'
import { expect, it } from 'vitest'
import { LeaseholdError } from '../errors.ts'
import { isStalePreparedStatement, isUnavailable, unavailable } from './failures.ts'

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
  new LeaseholdError('DATABASE_UNAVAILABLE', 'gone'),
])('is a matter of reachability: %s', (error) => {
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
])('is not: %s', (error) => {
  expect(isUnavailable(error)).toBe(false)
})

it('an error of another copy of pg is known by its fields, not by its class', () => {
  const foreign = Object.assign(new Error('terminating connection'), { code: '57P01', severity: 'FATAL' })
  expect(isUnavailable(foreign)).toBe(true)
})

it('only the plan cache makes a "feature not supported" a stale statement', () => {
  expect(
    isStalePreparedStatement(Object.assign(sent('0A000', 'ERROR'), { routine: 'RevalidateCachedQuery' })),
  ).toBe(true)
  expect(isStalePreparedStatement(sent('0A000', 'ERROR'))).toBe(false)
})

it('the reason of several addresses is told, and the original is the cause', () => {
  const cause = new AggregateError([system('ECONNREFUSED'), system('ENETUNREACH')])
  const error = unavailable(cause)
  expect(error).toMatchObject({ code: 'DATABASE_UNAVAILABLE', cause })
  expect(error.message).toContain('ECONNREFUSED')
  expect(error.message).toContain('ENETUNREACH')
  expect(unavailable(error)).toBe(error)
})
