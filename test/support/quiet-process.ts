import { afterAll, beforeAll, expect } from 'vitest'

/** Fails the test file after an unhandled rejection or exception, which would end the process in production. */
export function useQuietProcess(): void {
  const errors: unknown[] = []
  const onError = (error: unknown): void => {
    errors.push(error)
  }
  beforeAll(() => {
    process.on('unhandledRejection', onError)
    process.on('uncaughtException', onError)
  })
  afterAll(async () => {
    // An unhandled rejection is reported after the microtasks of its turn.
    await new Promise((resolve) => setImmediate(resolve))
    process.off('unhandledRejection', onError)
    process.off('uncaughtException', onError)
    expect(errors, 'unhandled errors').toEqual([])
  })
}
