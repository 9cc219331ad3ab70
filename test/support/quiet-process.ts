import { afterAll, beforeAll, expect } from 'vitest'

/** Fails the file when a rejection or an exception in it reached nobody: in production that ends the process. */
export function useQuietProcess(): void {
  const heard: unknown[] = []
  const hear = (error: unknown): void => {
    heard.push(error)
  }
  beforeAll(() => {
    process.on('unhandledRejection', hear)
    process.on('uncaughtException', hear)
  })
  afterAll(async () => {
    // An unhandled rejection is told only after the microtasks of its turn.
    await new Promise((resolve) => setImmediate(resolve))
    process.off('unhandledRejection', hear)
    process.off('uncaughtException', hear)
    expect(heard, 'errors that nobody handled').toEqual([])
  })
}
