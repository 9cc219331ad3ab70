import { inspect } from 'node:util'
import { LeaseholdError } from '../errors.ts'
import { checkText } from '../messages/validate.ts'

/** For each status, the statuses that may follow it. A status without followers is final. Every status has an entry. */
export type Transitions<Status extends string = string> = Readonly<Record<Status, readonly NoInfer<Status>[]>>

export interface Transition {
  readonly from: string
  readonly to: string
  /** The name of its outcome in the lease table. */
  readonly outcome: string
}

/** Every declared transition; any other is refused before it reaches the database. */
export function allowedTransitions(transitions: Transitions): readonly Transition[] {
  refuseInvalid(transitions)
  return Object.entries(transitions).flatMap(([from, targets]) =>
    targets.map((to) => ({ from, to, outcome: `${from}->${to}` })),
  )
}

function refuseInvalid(transitions: unknown): void {
  const text = inspect(transitions, { depth: 1, breakLength: Infinity })
  if (typeof transitions !== 'object' || transitions === null || Array.isArray(transitions)) {
    throw invalid(`transitions is ${text}`)
  }
  const entries: readonly [string, unknown][] = Object.entries(transitions)
  const problems = entries.flatMap(([from, targets]) => {
    const [problem] = checkText(`transitions.${from}`, from, 'the name of a status')
    if (problem !== undefined) return [problem]
    if (!Array.isArray(targets)) return [`transitions.${from} is ${inspect(targets)}, and must be a list`]
    return targets.flatMap((to: unknown) => {
      if (typeof to !== 'string')
        return [`transitions.${from} has ${inspect(to)}, and must have names of statuses`]
      if (to === from) return [`transitions.${from} leads to itself`]
      if (!Object.hasOwn(transitions, to))
        return [`transitions.${from} leads to ${to}, which has no entry: add ${to}: [] if it is final`]
      return []
    })
  })
  const isEmpty = entries.every(([, targets]) => Array.isArray(targets) && targets.length === 0)
  if (isEmpty) problems.push('transitions leads nowhere')
  if (problems.length > 0) throw invalid(problems.join('; '))
}

function invalid(problem: string): LeaseholdError {
  return new LeaseholdError('SETTING_INVALID', `The reconciler cannot work: ${problem}.`, {
    remedy:
      "Give every status and where it may lead: { pending: ['paid', 'expired'], paid: [], expired: [] }.",
  })
}
