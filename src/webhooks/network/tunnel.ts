/**
 * A connection through an egress proxy, by CONNECT. The proxy resolves the name and it must keep requests away from
 * what is internal: here only the form of the URL and addresses in it are judged. The proxy's own address is the
 * operator's and not judged.
 */
import { isIPv6, Socket } from 'node:net'

import { Client } from 'undici'

import { LeaseholdError } from '../../errors.ts'
import { messageOf, NetworkFailure } from './failure.ts'
import { type Open, unlessAborted } from './open.ts'

/** The URL of a proxy, validated; credentials in it are sent to it as Basic. */
export function usableProxy(text: string): URL {
  const url = URL.canParse(text) ? new URL(text) : undefined
  if (url?.protocol === 'http:' || url?.protocol === 'https:') return url
  // Not repeated: it may have a password in it.
  throw new LeaseholdError(
    'SETTING_INVALID',
    'The setting proxy of webhooks is not the URL of an HTTP proxy.',
    {
      remedy: 'Give one such as http://proxy.example:3128.',
    },
  )
}

export function openThrough(proxy: URL, connectTimeoutMs: number): Open {
  const authorization =
    proxy.username === ''
      ? {}
      : { 'proxy-authorization': `Basic ${Buffer.from(decodedUserinfo(proxy)).toString('base64')}` }
  return async ({ host, port }, signal) => {
    const authority = `${isIPv6(host) ? `[${host}]` : host}:${port}`
    // A client for each tunnel: its connection becomes the tunnel.
    const client = new Client(proxy.origin, { connectTimeout: connectTimeoutMs, headersTimeout: 0 })
    try {
      const headers = { host: authority, ...authorization }
      // undici hears the signal only once it is connected to the proxy.
      const { socket, statusCode } = await unlessAborted(
        signal,
        client.connect({ path: authority, headers, signal }),
      )
      socket.on('error', () => {})
      // undici types the tunnel as any Duplex; TLS is put on top of a socket.
      if (statusCode === 200 && socket instanceof Socket) return socket
      socket.destroy()
      throw new NetworkFailure('proxy', `the proxy answered HTTP ${statusCode} for ${host}`)
    } catch (error) {
      signal.throwIfAborted()
      if (error instanceof NetworkFailure) throw error
      throw new NetworkFailure('proxy', `no connection through the proxy: ${messageOf(error)}`, error)
    } finally {
      await client.destroy()
    }
  }
}

function decodedUserinfo({ username, password }: URL): string {
  return `${decodeURIComponent(username)}:${decodeURIComponent(password)}`
}
