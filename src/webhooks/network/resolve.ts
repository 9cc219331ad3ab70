/**
 * Resolves names to addresses. Node's `lookup` blocks one of the four threads that the whole process shares: four names
 * whose servers never answer would stop every other endpoint, and file access. So names are resolved by asking the name
 * servers without a thread. `lookup` is used for names only the system knows: localhost, names without a dot, the hosts
 * file, search domains.
 */
import { lookup, Resolver } from 'node:dns/promises'

/** Returns all addresses of a name, in the order in which to try them. */
export type Resolve = (host: string, signal: AbortSignal) => Promise<readonly string[]>

export interface ResolverOptions {
  /** How long the first try of a name server may take. Default 2000. */
  readonly timeoutMs?: number
  /** How often each name server is tried. Default 2. */
  readonly tries?: number
  /** Name servers to ask, as `address` or `address:port`. Default: the system's. */
  readonly servers?: readonly string[]
  /** How the system resolver is asked. Default: Node's `lookup`. */
  readonly askSystem?: (host: string) => Promise<readonly string[]>
}

type Lookup = (host: string) => Promise<readonly string[]>

const SYSTEM_NAME = /^[^.]+$|\.localhost$/
/**
 * The name servers do not know the name, or there are none: the system may know it. A timeout is not among these codes,
 * because asking the system then would occupy a thread for as long.
 */
const UNKNOWN_NAME_CODES = new Set(['ENOTFOUND', 'ENODATA', 'ECONNREFUSED'])
/** Of the four threads; the others stay free for the rest of the process. */
const MAX_CONCURRENT_LOOKUPS = 2

export function createResolver(options: ResolverOptions = {}): Resolve {
  const askSystem = shareConcurrent(
    limitConcurrency(MAX_CONCURRENT_LOOKUPS, options.askSystem ?? systemLookup),
  )
  return async (host, signal) => {
    if (SYSTEM_NAME.test(host)) return askSystem(host)
    const answers = await askServers(host, signal, options)
    // IPv4 first: without an IPv6 route, each IPv6 address would use up its part of the connect timeout.
    const addresses = answers.flatMap((answer) => (answer.status === 'fulfilled' ? answer.value : []))
    if (addresses.length > 0) return addresses
    const failed = answers.flatMap((answer): unknown[] =>
      answer.status === 'rejected' ? [answer.reason] : [],
    )
    const serverFailure = failed.find((error) => !UNKNOWN_NAME_CODES.has(codeOf(error)))
    if (serverFailure !== undefined) throw serverFailure
    return askSystem(host)
  }
}

/** Uses one resolver per call: it can be cancelled alone, and it reads the system's current list of name servers. */
async function askServers(
  host: string,
  signal: AbortSignal,
  { timeoutMs = 2_000, tries = 2, servers }: ResolverOptions,
): Promise<readonly PromiseSettledResult<readonly string[]>[]> {
  const resolver = new Resolver({ timeout: timeoutMs, tries })
  if (servers !== undefined) resolver.setServers(servers)
  const cancel = (): void => resolver.cancel()
  signal.addEventListener('abort', cancel, { once: true })
  try {
    return await Promise.allSettled([resolver.resolve4(host), resolver.resolve6(host)])
  } finally {
    signal.removeEventListener('abort', cancel)
  }
}

async function systemLookup(host: string): Promise<readonly string[]> {
  const found = await lookup(host, { all: true, verbatim: true })
  return found.map(({ address }) => address)
}

function codeOf(error: unknown): string {
  return error instanceof Error && 'code' in error ? String(error.code) : ''
}

/** Concurrent lookups of one name share one answer. */
function shareConcurrent(ask: Lookup): Lookup {
  const pending = new Map<string, Promise<readonly string[]>>()
  return async (host) => {
    const asked = pending.get(host)
    if (asked !== undefined) return asked
    const answer = ask(host).finally(() => pending.delete(host))
    pending.set(host, answer)
    return answer
  }
}

/** At most `count` lookups run at a time; the others wait in order of arrival. */
function limitConcurrency(count: number, ask: Lookup): Lookup {
  let free = count
  const waiting: (() => void)[] = []
  return async (host) => {
    if (free === 0) await new Promise<void>((resolve) => waiting.push(resolve))
    else free -= 1
    try {
      return await ask(host)
    } finally {
      const next = waiting.shift()
      if (next === undefined) free += 1
      else next()
    }
  }
}
