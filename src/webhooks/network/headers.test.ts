import { describe, expect, it } from 'vitest'

import { headersProblem, usableHeaders } from './headers.ts'

it('headers of an endpoint are kept by their names in lower case', () => {
  expect(usableHeaders({ Authorization: 'Bearer a b', 'X-Empty': '', 'x-tab': 'a\tb' })).toEqual({
    authorization: 'Bearer a b',
    'x-empty': '',
    'x-tab': 'a\tb',
  })
})

describe('what cannot be sent is refused, and its value not repeated', () => {
  it.each([
    ['x-a', 'secret\r\nx-injected: 1'],
    ['x-a', 'secret\n'],
    ['x-a', 'secret\r'],
    ['x-a', 'secret\0'],
    ['x-a', '\u007fsecret'],
    ['x-a', 'secrét'],
    ['x-a', 'secret\u010a'],
    ['x-a', ' secret'],
    ['x-a', 'secret '],
    ['x-a\r\nx-injected', 'secret'],
    ['x a', 'secret'],
    ['x:a', 'secret'],
    ['', 'secret'],
    ['x-ä', 'secret'],
  ])('%j: %j', (name, value) => {
    const attempt = () => usableHeaders({ [name]: value })
    expect(attempt).toThrow(expect.objectContaining({ code: 'REQUEST_INVALID' }))
    expect(attempt).toThrow(JSON.stringify(name))
    expect(attempt).not.toThrow('sec')
    expect(headersProblem({ [name]: value })).toContain(JSON.stringify(name))
  })

  it('a value that is no text', () => {
    const parsed: Record<string, string> = JSON.parse('{"x-a": ["b"]}')
    expect(() => usableHeaders(parsed)).toThrow('"x-a"')
  })

  it('one name in two spellings', () => {
    expect(() => usableHeaders({ 'X-A': '1', 'x-a': '2' })).toThrow('twice')
  })

  it('too many, or too much', () => {
    const many = Object.fromEntries(Array.from({ length: 33 }, (_, i) => [`x-${i}`, '']))
    expect(() => usableHeaders(many)).toThrow('33 headers')
    expect(() => usableHeaders({ 'x-a': 'a'.repeat(8_192) })).toThrow('8195 characters')
  })
})

it.each([
  'Host',
  'content-length',
  'Content-Type',
  'content-encoding',
  'transfer-encoding',
  'connection',
  'keep-alive',
  'upgrade',
  'expect',
  'te',
  'trailer',
  'proxy-authorization',
  'webhook-id',
  'Webhook-Signature',
  'idempotency-key',
])('an endpoint does not set %s', (name) => {
  expect(() => usableHeaders({ [name]: 'x' })).toThrow('not yours to set')
})

it('the dispatcher sets what describes a delivery, but not the framing', () => {
  expect(headersProblem({ 'webhook-id': 'msg_1', 'content-type': 'application/json' })).toBeUndefined()
  for (const name of [
    'host',
    'Content-Length',
    'transfer-encoding',
    'connection',
    'expect',
    'proxy-authorization',
  ]) {
    expect(headersProblem({ [name]: '1' })).toContain(name)
  }
})
