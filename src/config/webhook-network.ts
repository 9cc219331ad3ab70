import { networkPolicy } from '../webhooks/network/policy.ts'
import { usableProxy } from '../webhooks/network/tunnel.ts'

export function areNetworks(allow: readonly string[]): boolean {
  return holds(() => networkPolicy({ allow }))
}

export function isProxy(url: string): boolean {
  return holds(() => usableProxy(url))
}

function holds(check: () => unknown): boolean {
  try {
    check()
    return true
  } catch {
    return false
  }
}
