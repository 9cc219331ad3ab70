/** Which events an endpoint receives: those of its tenant whose type it has subscribed to. */
import { checkText, checkType, describeValue } from '../messages/validate.ts'

const MAX_TENANT_BYTES = 255

/** A tenant is any text. The empty text is the default tenant. */
export function checkTenant(path: string, tenant: unknown): string[] {
  if (tenant === '') return []
  if (typeof tenant !== 'string')
    return [`${path} is ${describeValue(tenant)}, but must be a text, or left out`]
  const size = Buffer.byteLength(tenant)
  if (size > MAX_TENANT_BYTES)
    return [`${path} has ${size} bytes, and at most ${MAX_TENANT_BYTES} are allowed`]
  return checkText(path, tenant, 'a text')
}

/** One entry of an endpoint's event types: an exact type, or a prefix such as `order.*`. */
export function checkEventType(path: string, value: unknown): string[] {
  const problems = checkType(path, value)
  if (problems.length > 0 || typeof value !== 'string' || !value.includes('*')) return problems
  if (value === '*' || /^[^*]+\.\*$/.test(value)) return []
  return [
    `${path} is ${describeValue(value)}, but * may only follow a dot at the end, as in order.*, or stand alone for all types`,
  ]
}

/** Whether an endpoint with these event types receives this type. The SQL function `webhook_wanted` does the same. */
export function isWanted(eventTypes: readonly string[], type: string): boolean {
  if (eventTypes.length === 0 || eventTypes.includes(type)) return true
  return eventTypes.some((wanted) => wanted.endsWith('*') && type.startsWith(wanted.slice(0, -1)))
}
