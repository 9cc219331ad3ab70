import { inspect } from 'node:util'
import { SaturatedError } from '../worker/completion/outcome.ts'
import type { Answer } from './publisher.ts'

/**
 * What a publisher said, if it makes sense: nothing at all, or an answer for each event. Anything else is an error, and
 * never an acknowledgement: an event that nobody took must not count as published.
 */
export function checkedAnswers(answers: unknown, count: number): readonly Answer[] | undefined {
  if (answers === undefined) return undefined
  if (!Array.isArray(answers)) {
    throw new TypeError(
      `the publisher returned ${shown(answers)}: return an array with an outcome for each event, or nothing`,
    )
  }
  if (answers.length !== count) {
    throw new TypeError(
      `the publisher returned ${answers.length} outcomes for ${count} events: return one for each, or nothing`,
    )
  }
  const wrong: unknown = answers.find((answer) => !isAnswer(answer))
  if (answers.some((answer) => !isAnswer(answer))) {
    throw new TypeError(
      `the publisher returned ${shown(wrong)} for an event: return done(), retry() or dead()`,
    )
  }
  // Each of them was looked at.
  return answers as readonly Answer[]
}

const OUTCOMES = new Set<unknown>(['done', 'retry', 'dead'])

function isAnswer(value: unknown): boolean {
  if (value instanceof SaturatedError) return true
  if (typeof value !== 'object' || value === null || !('outcome' in value) || !('args' in value)) return false
  return OUTCOMES.has(value.outcome) && typeof value.args === 'object' && value.args !== null
}

function shown(value: unknown): string {
  return inspect(value, { depth: 0, breakLength: Infinity }).slice(0, 100)
}
