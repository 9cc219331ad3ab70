import { randomInt } from 'node:crypto'
import { once } from 'node:events'
import { createServer } from 'node:net'

/**
 * Below the ephemeral ports of the operating system. While a server is stopped, the system must not give its port to
 * another program, or to a client that tries to connect to it.
 */
const PORTS = { from: 15_000, to: 30_000 }

export async function freePort(): Promise<number> {
  for (;;) {
    const port = randomInt(PORTS.from, PORTS.to)
    const probe = createServer()
    const free = once(probe, 'listening').then(
      () => true,
      () => false,
    )
    probe.listen(port, '127.0.0.1')
    if (!(await free)) continue
    probe.close()
    await once(probe, 'close')
    return port
  }
}
