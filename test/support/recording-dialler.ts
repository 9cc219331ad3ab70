import { connect, Socket } from 'node:net'

import type { Dial, Dialled } from '../../src/webhooks/network/connect.ts'

export interface RecordingDialler {
  readonly dial: Dial
  /** Everything that was to be dialled, in order. */
  readonly dialled: readonly Dialled[]
  /** The addresses among them, each once. */
  readonly addresses: () => readonly string[]
}

export interface RecordingOptions {
  /** Ports on 127.0.0.1 that stand in for addresses elsewhere: the socket says it is connected to the address. */
  readonly standIns?: Readonly<Record<string, number>>
  /** Dial 127.0.0.1 for real. Default false. */
  readonly loopback?: boolean
}

/**
 * Dials nothing but 127.0.0.1, whatever it is told: so even a guard that is broken sends nothing to anybody. Anything
 * else is written down, and refused as an unreachable host would be.
 */
export function recordingDialler({
  standIns = {},
  loopback = false,
}: RecordingOptions = {}): RecordingDialler {
  const dialled: Dialled[] = []
  return {
    dialled,
    addresses: () => [...new Set(dialled.map(({ address }) => address))],
    dial(to) {
      dialled.push(to)
      const standIn = standIns[to.address]
      if (standIn !== undefined) return elsewhere(to.address, standIn)
      if (loopback && to.address === '127.0.0.1') return connect({ host: '127.0.0.1', port: to.port })
      return new Socket().destroy(new Error(`recorded and not dialled: ${to.address}`))
    },
  }
}

function elsewhere(address: string, port: number): Socket {
  const socket = connect({ host: '127.0.0.1', port })
  return Object.defineProperty(socket, 'remoteAddress', { get: () => address })
}

/** For posters that have no name to resolve: even a broken one then asks no name server. */
export async function resolveNothing(host: string): Promise<never> {
  throw new Error(`nobody was to resolve ${host}`)
}
