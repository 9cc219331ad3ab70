import { type Api, createDashboard } from 'leasehold/server'
import type { NextRequest } from 'next/server'
import { database } from '../../../../lib/database'
import { COOKIE, userOf } from '../../../../lib/session'

const BASE_PATH = '/admin/leasehold'
let created: Api | undefined

/** The pages, and below them the HTTP API at /admin/leasehold/api/v1. */
function dashboard(): Api {
  created ??= createDashboard({
    db: database(),
    basePath: BASE_PATH,
    authorize: (_request, { user }) =>
      typeof user === 'string' ? { principal: user, role: 'operate', tenant: null } : undefined,
  })
  return created
}

async function handle(request: NextRequest): Promise<Response> {
  const user = userOf(request.cookies.get(COOKIE)?.value)
  if (user === undefined) return new Response(null, { status: 303, headers: { location: '/login' } })
  return dashboard().fetch(request, { user })
}

export { handle as GET, handle as HEAD, handle as POST, handle as PATCH, handle as PUT, handle as DELETE }
