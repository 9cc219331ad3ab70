/**
 * Names to addresses. Node's `lookup` blocks one of four threads that the whole process shares: four names whose
 * servers never answer would stop every other endpoint, and the disk. So names of the internet are asked for without
 * a thread, and `lookup` serves what only it knows: localhost, names without a dot, the hosts file, search domains.
 */
import { lookup, Resolver } from 'node:dns/promises'

import type { Resolve } from './open.ts'

export interface ResolverOptions {
  /** How long the first try of a name server may take. Default 2000. */
  readonly timeoutMs?: number
  /** Tries of each name server. Default 2. */
  readonly tries?: number
  /** Name servers to ask, as `address` or `address:port`. Default: the system's. */
  readonly servers?: readonly string[]
  /** How the system is asked. Default: `lookup` of Node. */
  readonly askSystem?: (host: string) => Promise<readonly string[]>
}

type Lookup = (host: string) => Promise<readonly string[]>

const FOR_THE_SYSTEM = /^[^.]+$|\.localhost$/
/** The name servers do not know it, or there are none; the system may. Silence is an answer, and costs no thread. */
const ASK_THE_SYSTEM = new Set(['ENOTFOUND', 'ENODATA', 'ECONNREFUSED'])
/** Of four threads; the others stay free for the rest of the process. */
const MOST_LOOKUPS = 2

export function createResolver(options: ResolverOptions = {}): Resolve {
  const askSystem = shared(few(MOST_LOOKUPS, options.askSystem ?? systemLookup))
  return async (host, signal) => {
    if (FOR_THE_SYSTEM.test(host)) return askSystem(host)
    const answers = await askServers(host, signal, options)
    // IPv4 first: where there is no way to IPv6, its addresses would each cost their share of the time.
    const addresses = answers.flatMap((answer) => (answer.status === 'fulfilled' ? answer.value : []))
    if (addresses.length > 0) return addresses
    const failed = answers.flatMap((answer): unknown[] =>
      answer.status === 'rejected' ? [answer.reason] : [],
    )
    const silence = failed.find((error) => !ASK_THE_SYSTEM.has(codeOf(error)))
    if (silence !== undefined) throw silence
    return askSystem(host)
  }
}

/** With a resolver of its own, so that it can be ended without the others, and the system's servers are current. */
async function askServers(
  host: string,
  signal: AbortSignal,
  { timeoutMs = 2_000, tries = 2, servers }: ResolverOptions,
): Promise<readonly PromiseSettledResult<readonly string[]>[]> {
  const resolver = new Resolver({ timeout: timeoutMs, tries })
  if (servers !== undefined) resolver.setServers(servers)
  const stop = (): void => resolver.cancel()
  signal.addEventListener('abort', stop, { once: true })
  try {
    return await Promise.allSettled([resolver.resolve4(host), resolver.resolve6(host)])
  } finally {
    signal.removeEventListener('abort', stop)
  }
}

async function systemLookup(host: string): Promise<readonly string[]> {
  const found = await lookup(host, { all: true, verbatim: true })
  return found.map(({ address }) => address)
}

function codeOf(error: unknown): string {
  return error instanceof Error && 'code' in error ? String(error.code) : ''
}

/** Whoever asks for a name that is being asked for gets the same answer. */
function shared(ask: Lookup): Lookup {
  const underway = new Map<string, Promise<readonly string[]>>()
  return async (host) => {
    const asked = underway.get(host)
    if (asked !== undefined) return asked
    const answer = ask(host).finally(() => underway.delete(host))
    underway.set(host, answer)
    return answer
  }
}

/** So many at a time, the others in their order. */
function few(count: number, ask: Lookup): Lookup {
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
