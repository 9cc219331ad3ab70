import { expect, it } from 'vitest'
import { usePortalLink } from '../../operations/api-sessions.ts'
import { type Called, useCommandLine } from '../../../test/support/command-line.ts'

const { db, call } = useCommandLine('webhooks')

async function portal(...args: readonly string[]): Promise<Called> {
  return call(['portal', ...args])
}

it('portal prints a link that opens the portal of the tenant once, and the audit says who made it', async () => {
  const { code, stdout } = await portal('acme', '--name', 'ada', '--principal', 'bob')
  expect(code).toBe(0)
  const [, token = ''] = /^portal#(lhl_[\w-]{43})\n$/.exec(stdout) ?? []
  expect(await usePortalLink(db, token)).toMatchObject({
    tenant: 'acme',
    role: 'read',
    principal: 'portal:ada',
    keyId: null,
  })
  expect(await usePortalLink(db, token)).toBeUndefined()
  const { rows } = await db.query({
    text: `select principal, target from leasehold.audit where action = 'webhooks.portal.link'`,
  })
  expect(rows).toEqual([{ principal: 'bob', target: 'acme' }])
})

it.each([
  ['https://hooks.example', 'https://hooks.example/portal#'],
  ['https://hooks.example/', 'https://hooks.example/portal#'],
  ['https://example.com/admin?x=1#y', 'https://example.com/admin/portal#'],
])('portal with --url %s prints the whole link', async (url, start) => {
  const { stdout } = await portal('acme', '--url', url)
  expect(stdout.startsWith(`${start}lhl_`)).toBe(true)
})

it('portal with --json prints the token, the path, the URL and when the link expires', async () => {
  const printed = await portal(
    'acme',
    '--role',
    'operate',
    '--expires',
    '1m',
    '--url',
    'http://localhost:7400',
    '--json',
  )
  const { token, path, url, expiresAt } = JSON.parse(printed.stdout)
  expect({ path, url }).toEqual({ path: `portal#${token}`, url: `http://localhost:7400/portal#${token}` })
  const { rows } = await db.query<{ seconds: number; role: string; expiresAt: Date }>({
    text: `select extract(epoch from expires_at - created_at)::int as seconds, role, expires_at as "expiresAt"
from leasehold.api_portal_links where hash = sha256($1)`,
    values: [Buffer.from(token)],
  })
  expect(rows).toEqual([{ seconds: 60, role: 'operate', expiresAt: new Date(expiresAt) }])
})

it.each([
  [['acme', '--role', 'admin'], /--role is "admin": give one of read, operate/],
  [['acme', '--expires', '2h'], /expiresInSeconds is 7200.*from 10 to 3600/],
  [['acme', '--expires', 'soon'], /--expires is "soon"/],
  [['acme', '--url', 'hooks.example'], /--url is "hooks.example"/],
  [['acme', '--url', 'javascript:alert(1)'], /--url is /],
  [[''], /tenant is ""/],
])('portal refuses %j, and makes no link', async (args, message) => {
  const count = async (): Promise<number | null> =>
    (await db.query({ text: 'select from leasehold.api_portal_links' })).rowCount
  const before = await count()
  const refused = await portal(...args)
  expect(refused).toMatchObject({ code: 2, stdout: '' })
  expect(refused.stderr).toMatch(message)
  expect(await count()).toBe(before)
})
