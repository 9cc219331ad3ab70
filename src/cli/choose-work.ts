import { LeaseholdError } from '../errors.ts'
import type { WorkDeclaration } from '../worker/index.ts'
import { REAPER } from '../config/index.ts'
import { nearest } from '../nearest.ts'
import { WEBHOOKS } from '../webhooks/dispatcher/dispatcher.ts'

/** What one process is to do. */
export interface ChosenWork {
  readonly workers: readonly WorkDeclaration[]
  readonly reaper: boolean
  /** Everything that is declared: the reaper and the metrics look at all of it, whoever works on it. */
  readonly declared: readonly WorkDeclaration[]
}

/** `--only emails,reaper`; without it, everything that is declared, and the reaper. */
export function chooseWork(declared: readonly WorkDeclaration[], only?: string): ChosenWork {
  if (declared.length === 0) {
    throw new LeaseholdError('SETTING_INVALID', 'There is nothing to work on: no workers are declared.', {
      remedy:
        'Declare them in leasehold.config.mjs: `export default { workers: [{ name, table, handle }] }`, and run this in its directory.',
    })
  }
  if (only === undefined) return { workers: declared, reaper: true, declared }
  const wanted = only.split(',').map((name) => name.trim())
  const known = [...new Set(declared.flatMap(({ name, role = name }) => [role, name])), REAPER]
  const unknown = wanted.find((name) => !known.includes(name))
  if (unknown !== undefined) throw unknownRole(only, unknown, known)
  return {
    workers: declared.filter(({ name, role = name }) => wanted.includes(name) || wanted.includes(role)),
    reaper: wanted.includes(REAPER),
    declared,
  }
}

function unknownRole(only: string, unknown: string, known: readonly string[]): LeaseholdError {
  const meant = nearest(unknown, known)
  const hint =
    unknown === WEBHOOKS
      ? ' The dispatcher of webhooks needs LEASEHOLD_SECRET_KEY, with which the secrets of endpoints are encrypted.'
      : meant === undefined
        ? ''
        : ` Did you mean ${meant}?`
  return new LeaseholdError(
    'SETTING_INVALID',
    `--only is ${JSON.stringify(only)}, but there is no worker ${JSON.stringify(unknown)}: there are ${known.join(', ')}.`,
    { remedy: `Name one or more of them, separated by commas.${hint}` },
  )
}
