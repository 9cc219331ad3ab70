import { types } from 'pg'

const BIGINT: number = types.builtins.INT8
const BEYOND_NUMBERS = '9007199254740993'

/** Whether a `bigint` arrives as PostgreSQL writes it. Whoever has told `pg` to make numbers of them loses large ones. */
export function keepsBigints(): boolean {
  const parsed: unknown = types.getTypeParser(BIGINT)(BEYOND_NUMBERS)
  return String(parsed) === BEYOND_NUMBERS
}
