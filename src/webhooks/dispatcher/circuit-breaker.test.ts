import { describe, expect, it } from 'vitest'
import { CircuitBreaker, circuitBreakerSettings } from './circuit-breaker.ts'

const settings = circuitBreakerSettings({ failureThreshold: 3, openMs: 100, maxOpenMs: 300 })

/** A circuit breaker that has recorded this many failures at the time 0. */
function failing(times: number): CircuitBreaker {
  const breaker = new CircuitBreaker(settings)
  for (let i = 0; i < times; i += 1) breaker.recordFailure(0)
  return breaker
}

describe('a circuit breaker', () => {
  it('the circuit opens after failureThreshold failures in a row, and becomes half-open after openMs', () => {
    const breaker = failing(2)
    expect(breaker.state(0)).toBe('closed')
    expect(breaker.recordFailure(0)).toEqual({ to: 'open', failures: 3, openMs: 100 })
    expect([breaker.state(99), breaker.state(100)]).toEqual(['open', 'half-open'])
  })

  it('a success resets the count of failures', () => {
    const breaker = failing(2)
    expect(breaker.recordSuccess()).toBeUndefined()
    breaker.recordFailure(0)
    expect(breaker.recordFailure(0)).toBeUndefined()
    expect(breaker.state(0)).toBe('closed')
  })

  it('failures of attempts that were in flight when the circuit opened do not extend it', () => {
    expect(failing(3).recordFailure(50)).toBeUndefined()
  })

  it('the circuit stays open twice as long after every failed probe, up to maxOpenMs', () => {
    const breaker = failing(3)
    expect(breaker.recordFailure(100)).toMatchObject({ openMs: 200 })
    expect(breaker.recordFailure(300)).toMatchObject({ openMs: 300 })
    expect(breaker.recordFailure(600)).toMatchObject({ openMs: 300 })
  })

  it('the first success closes the circuit and resets it', () => {
    const breaker = failing(3)
    expect(breaker.recordSuccess()).toEqual({ to: 'closed' })
    expect([breaker.state(0), breaker.recordFailure(0), breaker.recordFailure(0)]).toEqual([
      'closed',
      undefined,
      undefined,
    ])
    expect(breaker.recordFailure(0)).toMatchObject({ openMs: 100 })
  })

  it('the circuit takes over that another dispatcher opened or closed it', () => {
    const breaker = new CircuitBreaker(settings)
    breaker.synchronize({ isOpen: true, openForMs: 500, failures: 3 }, 0)
    expect([breaker.state(499), breaker.state(500)]).toEqual(['open', 'half-open'])
    breaker.synchronize({ isOpen: false, openForMs: 0, failures: 0 }, 2_000)
    expect(breaker.state(2_000)).toBe('closed')
  })

  it('an opening that is not stored yet is not undone by the stored state', () => {
    const breaker = failing(3)
    breaker.synchronize({ isOpen: false, openForMs: 0, failures: 0 }, 50)
    expect(breaker.state(50)).toBe('open')
  })

  it('invalid settings are refused, all at once', () => {
    expect(() => circuitBreakerSettings({ failureThreshold: 0, openMs: 10, maxOpenMs: 5 })).toThrow(
      'circuitBreaker.failureThreshold is 0, but must be a whole number from 1; circuitBreaker.maxOpenMs is 5, but must be at least openMs (10)',
    )
  })
})
