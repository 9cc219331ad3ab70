import { inspect } from 'node:util'

import { LeaseholdError } from '../../errors.ts'

/** Refuses an option that breaks a rule, by its name, its value and what to give instead. */
export function refuse(publisher: string, option: string, value: unknown, remedy: string): never {
  throw new LeaseholdError(
    'SETTING_INVALID',
    `The option ${option} of the ${publisher} publisher cannot be ${shown(value)}.`,
    { remedy },
  )
}

export function wholeNumber(publisher: string, option: string, value: number, least = 1): number {
  if (Number.isSafeInteger(value) && value >= least) return value
  return refuse(publisher, option, value, `Give a whole number of at least ${least}.`)
}

/** Parsed, of one of these protocols. What may hold a password is never repeated. */
export function usableUrl(publisher: string, value: string, protocols: readonly string[]): URL {
  const remedy = `Give a URL that begins with ${protocols.map((protocol) => `${protocol}//`).join(' or ')}`
  let url: URL
  try {
    url = new URL(value)
  } catch {
    return refuse(publisher, 'url', undefined, `${remedy}.`)
  }
  if (!protocols.includes(url.protocol)) refuse(publisher, 'url', url.protocol, `${remedy}.`)
  return url
}

function shown(value: unknown): string {
  if (value === undefined) return 'what was given'
  return inspect(value, { depth: 1 })
}
