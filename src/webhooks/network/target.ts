/**
 * Whether a URL may be an endpoint's: asked when the endpoint is created or changed, and again before each request,
 * as policies change. What a name resolves to is judged at the connection (`open.ts`). Of a URL only the host is
 * ever repeated: its path may be a secret.
 */
import { LeaseholdError } from '../../errors.ts'
import { parseAddress } from './address.ts'
import { type NetworkPolicy, type Protocol, reasonRefused } from './policy.ts'

export type TargetVerdict =
  | { readonly usable: true; readonly url: URL; readonly protocol: Protocol }
  | {
      readonly usable: false
      readonly code: 'invalidUrl' | 'refusedAddress'
      readonly message: string
      readonly remedy: string
    }

export interface TargetOptions {
  /** A proxy resolves the names: what they lead to is not seen here. */
  readonly proxied?: boolean
}

const LONGEST_URL = 2_048
const LOCALHOST = /^(?:.+\.)?localhost$/
const GIVE_HTTPS = 'Give a URL that begins with https://.'

export function judgeTarget(
  target: string | URL,
  policy: NetworkPolicy,
  { proxied = false }: TargetOptions = {},
): TargetVerdict {
  const text = String(target)
  if (text.length > LONGEST_URL) {
    return invalid(`has ${text.length} characters`, `Give at most ${LONGEST_URL}.`)
  }
  // The parser would drop them silently, and another host would be called than the one that was read.
  if (/[\s\p{Cc}\\]/u.test(text)) {
    return invalid(
      'has a space, a backslash or a control character in it',
      'Leave it out or percent-encode it.',
    )
  }
  if (!URL.canParse(text)) return invalid('cannot be read', GIVE_HTTPS)
  const url = new URL(text)
  const { protocol } = url
  if (protocol !== 'https:' && protocol !== 'http:') return invalid(`begins with ${protocol}`, GIVE_HTTPS)
  if (url.username !== '' || url.password !== '') {
    return invalid('has credentials in it', 'Leave them out and give them in a header.')
  }
  if (text.includes('#')) return invalid('has a fragment', 'Leave out what follows #: it is never sent.')
  // A name in two spellings would pass by what is counted per host, and no certificate has the dot.
  if (url.hostname.endsWith('.')) return invalid('has a host that ends in a dot', 'Leave the dot out.')
  const port = url.port === '' ? (protocol === 'https:' ? 443 : 80) : Number(url.port)
  if (port === 0) return invalid('has port 0', 'Give a port from 1 to 65535.')
  if (policy.ports !== undefined && !policy.ports.has(port)) {
    return invalid(
      `has port ${port}`,
      `Use one of ${[...policy.ports].join(', ')}, or add it to the setting ports.`,
    )
  }
  return judgeHost(url, protocol, policy, proxied)
}

/** The URL as it will be called; throws what a person who set it can act on. */
export function usableTarget(target: string | URL, policy: NetworkPolicy, options: TargetOptions = {}): URL {
  const verdict = judgeTarget(target, policy, options)
  if (verdict.usable) return verdict.url
  throw new LeaseholdError('REQUEST_INVALID', verdict.message, { remedy: verdict.remedy })
}

function judgeHost(url: URL, protocol: Protocol, policy: NetworkPolicy, proxied: boolean): TargetVerdict {
  const host = hostOf(url)
  const isName = parseAddress(host) === undefined
  if (isName && protocol === 'http:' && !mayBeHttp(policy, proxied)) {
    return invalid(
      'begins with http:',
      `${GIVE_HTTPS} For development, the settings allow and allowHttp open http.`,
    )
  }
  // Only what every resolver agrees on; any other name is judged by its addresses.
  const addresses = LOCALHOST.test(host) ? ['127.0.0.1', '::1'] : isName ? [] : [host]
  const reasons = addresses.map((address) => reasonRefused(policy, address, protocol))
  const [reason] = reasons
  if (reason === undefined || reasons.includes(undefined)) return { usable: true, url, protocol }
  return {
    usable: false,
    code: 'refusedAddress',
    message: `The webhook URL leads to ${host}, which is ${reason}.`,
    remedy:
      'Give a public host; for development, add its network to the setting allow (webhookAllow, --webhook-allow).',
  }
}

/** Behind a proxy nobody here sees whether a name leads into `allow`. */
function mayBeHttp(policy: NetworkPolicy, proxied: boolean): boolean {
  return policy.allowHttp || (!proxied && policy.allow.length > 0)
}

/** The host as a resolver and a dialler take it: an IPv6 address without its brackets. */
export function hostOf(url: URL): string {
  return url.hostname.startsWith('[') ? url.hostname.slice(1, -1) : url.hostname
}

function invalid(problem: string, remedy: string): TargetVerdict {
  return { usable: false, code: 'invalidUrl', message: `The webhook URL ${problem}.`, remedy }
}
