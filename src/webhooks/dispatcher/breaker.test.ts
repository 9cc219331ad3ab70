import { describe, expect, it } from 'vitest'
import { Breaker, usableBreaker } from './breaker.ts'

const settings = usableBreaker({ failures: 3, firstMs: 100, longestMs: 300 })

function failing(times: number, at = 0): Breaker {
  const breaker = new Breaker(settings)
  for (let i = 0; i < times; i += 1) breaker.failed(at)
  return breaker
}

describe('a circuit', () => {
  it('stays closed until so many failures in a row, and says when it opens', () => {
    const breaker = failing(2)
    expect([breaker.isClosed, breaker.room(0)]).toEqual([true, Number.POSITIVE_INFINITY])
    expect(breaker.failed(0)).toEqual({ circuit: 'opened', failures: 3, forMs: 100 })
    expect([breaker.isClosed, breaker.room(99), breaker.room(100)]).toEqual([false, 0, 1])
  })

  it('counts failures in a row only', () => {
    const breaker = failing(2)
    expect(breaker.succeeded()).toBeUndefined()
    breaker.failed(0)
    expect(breaker.failed(0)).toBeUndefined()
    expect(breaker.isClosed).toBe(true)
  })

  it('is not opened anew by attempts that were under way when it opened', () => {
    expect(failing(3).failed(50)).toBeUndefined()
  })

  it('is open twice as long after each probe that fails, up to the longest', () => {
    const breaker = failing(3)
    expect(breaker.failed(100)).toMatchObject({ forMs: 200 })
    expect(breaker.failed(300)).toMatchObject({ forMs: 300 })
    expect(breaker.failed(600)).toMatchObject({ forMs: 300 })
  })

  it('closes with the first success, and begins anew', () => {
    const breaker = failing(3)
    expect(breaker.succeeded()).toEqual({ circuit: 'closed' })
    expect([breaker.isClosed, breaker.failed(0), breaker.failed(0)]).toEqual([true, undefined, undefined])
    expect(breaker.failed(0)).toMatchObject({ forMs: 100 })
  })

  it('learns from the database that another dispatcher has opened it, or closed it', () => {
    const breaker = new Breaker(settings)
    breaker.learn({ failing: true, openForMs: 500, failures: 3 }, 0)
    expect([breaker.room(499), breaker.room(500)]).toEqual([0, 1])
    breaker.learn({ failing: false, openForMs: 0, failures: 0 }, 2_000)
    expect(breaker.isClosed).toBe(true)
  })

  it('does not forget an opening that the database has not heard of yet', () => {
    const breaker = failing(3)
    breaker.learn({ failing: false, openForMs: 0, failures: 0 }, 50)
    expect(breaker.room(50)).toBe(0)
  })

  it('refuses settings that cannot work, all at once', () => {
    expect(() => usableBreaker({ failures: 0, firstMs: 10, longestMs: 5 })).toThrow(
      'breaker.failures is 0, but must be a whole number from 1; breaker.longestMs is 5, but must be at least firstMs (10)',
    )
  })
})
