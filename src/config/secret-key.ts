import { isLeaseholdError } from '../errors.ts'
import { secretKeys } from '../webhooks/signing/encryption.ts'

/** Whether secrets can be encrypted with it: one key, or several separated by commas. */
export function isSecretKey(text: string): boolean {
  try {
    secretKeys(text.split(',').map((key) => key.trim()))
    return true
  } catch (error) {
    if (isLeaseholdError(error, 'SECRET_KEY_INVALID')) return false
    throw error
  }
}
