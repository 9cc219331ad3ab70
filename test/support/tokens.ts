import { expect } from 'vitest'

/** Any token that a claim has given: the first of a row is a time in microseconds. */
export const A_TOKEN: unknown = expect.stringMatching(/^\d{16}$/)
