import { checkText, shown } from '../messages/validate.ts'

const LONGEST_TENANT = 255

/** Whose event or endpoint it is: any text, also the empty one, which stands for nobody in particular. */
export function checkTenant(path: string, tenant: unknown): string[] {
  if (tenant === '') return []
  if (typeof tenant !== 'string') return [`${path} is ${shown(tenant)}, but must be a text, or left out`]
  const size = Buffer.byteLength(tenant)
  if (size > LONGEST_TENANT) return [`${path} has ${size} bytes, and at most ${LONGEST_TENANT} are allowed`]
  return checkText(path, tenant, 'a text')
}
