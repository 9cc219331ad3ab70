import { checkType, shown } from '../../messages/validate.ts'

/** One of the types that an endpoint names: exact, or all that begin with something. */
export function checkEventType(path: string, value: unknown): string[] {
  const problems = checkType(path, value)
  if (problems.length > 0 || typeof value !== 'string' || !value.includes('*')) return problems
  if (value === '*' || /^[^*]+\.\*$/.test(value)) return []
  return [
    `${path} is ${shown(value)}, but * stands only for all that comes after a dot, as in order.*, or alone for everything`,
  ]
}

/** Whether somebody who names these types gets an event of this type: what `webhook_wanted` says in the database. */
export function isWanted(eventTypes: readonly string[], type: string): boolean {
  if (eventTypes.length === 0 || eventTypes.includes(type)) return true
  return eventTypes.some((wanted) => wanted.endsWith('*') && type.startsWith(wanted.slice(0, -1)))
}
