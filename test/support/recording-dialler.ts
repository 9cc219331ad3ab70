import { connect, Socket } from 'node:net'

import type { Dial, Dialled } from '../../src/webhooks/network/connect.ts'

export interface RecordingDialler {
  readonly dial: Dial
  /** All requested connections, in order. */
  readonly dialled: readonly Dialled[]
  /** The distinct addresses among them. */
  readonly addresses: () => readonly string[]
}

export interface RecordingOptions {
  /** Ports on 127.0.0.1 that replace other addresses. The socket reports the other address. */
  readonly standIns?: Readonly<Record<string, number>>
  /** Whether 127.0.0.1 is really dialled. Default false. */
  readonly loopback?: boolean
}

/**
 * Only ever dials 127.0.0.1, so that even a broken guard sends nothing to anybody. Every other address is recorded and
 * refused like an unreachable host.
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

/** A resolver that always fails, so that even defective code asks no name server. */
export async function resolveNothing(host: string): Promise<never> {
  throw new Error(`unexpected resolution of ${host}`)
}
