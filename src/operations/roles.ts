/** What the key of a caller lets it do. */

/** Each may do what the one before it may, and more. */
export const KEY_ROLES = ['read', 'operate', 'admin'] as const

export type KeyRole = (typeof KEY_ROLES)[number]

/** Whether a role may do what needs another one. */
export function mayDo(role: KeyRole, needed: KeyRole): boolean {
  return KEY_ROLES.indexOf(role) >= KEY_ROLES.indexOf(needed)
}
