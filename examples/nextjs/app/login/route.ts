import { COOKIE, signIn } from '../../lib/session'

const FORM = `<!doctype html><title>Log in</title>
<form method="post"><input type="password" name="password" aria-label="password" autofocus> <button>Log in</button></form>`

export function GET(): Response {
  return new Response(FORM, { headers: { 'content-type': 'text/html; charset=utf-8' } })
}

export async function POST(request: Request): Promise<Response> {
  const password = (await request.formData()).get('password')
  const session = signIn(typeof password === 'string' ? password : '')
  if (session === undefined) return new Response('wrong password', { status: 401 })
  const cookie = `${COOKIE}=${session}; Path=/; HttpOnly; SameSite=Strict`
  return new Response(null, { status: 303, headers: { location: '/admin/leasehold', 'set-cookie': cookie } })
}
