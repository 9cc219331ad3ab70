import { createHmac, timingSafeEqual } from 'node:crypto'

/** Stands for the login that your application has. */
const { ADMIN_PASSWORD = '', SESSION_SECRET = '' } = process.env

export const COOKIE = 'session'

export function signIn(password: string): string | undefined {
  return ADMIN_PASSWORD !== '' && isEqual(password, ADMIN_PASSWORD) ? `admin.${sign('admin')}` : undefined
}

export function userOf(session: string | undefined): string | undefined {
  const [user = '', signature = ''] = session?.split('.') ?? []
  return user !== '' && isEqual(signature, sign(user)) ? user : undefined
}

function sign(user: string): string {
  return createHmac('sha256', SESSION_SECRET).update(user).digest('base64url')
}

function isEqual(a: string, b: string): boolean {
  return a.length === b.length && timingSafeEqual(Buffer.from(a), Buffer.from(b))
}
