import { once } from 'node:events'
import { createServer } from 'node:net'

/** A port the kernel says is free now; the caller retries when someone else took it meanwhile. */
export async function freePort(): Promise<number> {
  const server = createServer()
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  server.close()
  await once(server, 'close')
  if (address === null || typeof address === 'string') throw new TypeError('a TCP server has a port')
  return address.port
}
