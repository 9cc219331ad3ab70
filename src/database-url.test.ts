import { describe, expect, it } from 'vitest'
import { isDatabaseUrl, targetSessionOf, urlsOfHosts, withoutPassword } from './database-url.ts'

describe('hosts', () => {
  it.each([
    ['postgresql://u:p@one:5432/app', ['postgresql://u:p@one:5432/app']],
    ['postgres://one,two/app', ['postgres://one/app', 'postgres://two/app']],
    [
      'postgres://u:p@one:5432,two:5433/app?target_session_attrs=read-write',
      [
        'postgres://u:p@one:5432/app?target_session_attrs=read-write',
        'postgres://u:p@two:5433/app?target_session_attrs=read-write',
      ],
    ],
    ['postgresql://u@[::1]:5432,[::2]/app', ['postgresql://u@[::1]:5432/app', 'postgresql://u@[::2]/app']],
    ['postgresql://one,two?a=b,c', ['postgresql://one?a=b,c', 'postgresql://two?a=b,c']],
    // Commas elsewhere separate no hosts.
    ['postgresql://u,v:p,q@one/a,b?host=/c,d', ['postgresql://u,v:p,q@one/a,b?host=/c,d']],
    ['postgresql://u:p@x,y@one/app', ['postgresql://u:p@x,y@one/app']],
    ['not, a, URL', ['not, a, URL']],
  ])('%s', (url, urls) => {
    expect(urlsOfHosts(url)).toEqual(urls)
  })
})

it.each([
  ['postgresql://one/app', 'any'],
  ['postgresql://one,two/app', 'read-write'],
  ['postgresql://one,two/app?target_session_attrs=any', 'any'],
  ['postgresql://one/app?sslmode=disable&target_session_attrs=primary', 'primary'],
  ['postgresql://one/app?target_session_attrs=standby', undefined],
])('the servers that %s permits: %s', (url, target) => {
  expect(targetSessionOf(url)).toBe(target)
})

it.each([
  ['postgresql://u:p@one:5432,two:5433/app?target_session_attrs=read-write', true],
  ['postgres://one,two', true],
  ['postgresql:///app?host=/run', true],
  ['postgresql://one,/app', false],
  ['postgresql://one,,two/app', false],
  ['postgresql://one:port,two/app', false],
  ['postgresql://one,two/app?target_session_attrs=standby', false],
  ['mysql://one,two/app', false],
  [undefined, false],
])('%s is a database URL: %s', (url, expected) => {
  expect(isDatabaseUrl(url)).toBe(expected)
})

it.each([
  ['postgres://u:s3cret@one:5432,two:5433/app', 'postgres://u:***@one:5432,two:5433/app'],
  ['postgres://one,two/app?password=s3cret', 'postgres://one,two/app?password=***'],
  ['postgres://u:s3cret@one/app', 'postgres://u:***@one/app'],
  ['postgres://u:s3cret@one,u:s3cret@two/app', 'postgres://u:***@two/app'],
  ['postgres://u:s3cret@one:port,two/app', '(hidden, because it may contain a password)'],
])('%# is shown without its password', (url, shown) => {
  expect(withoutPassword(url)).toBe(shown)
})
