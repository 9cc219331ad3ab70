import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'

const MISSING =
  'nats-server cannot be started. Install it (Debian: apt-get install nats-server), or set NATS_URL.'

/** Starts a NATS server with JetStream on a free loopback port. */
export async function startNats() {
  const directory = await mkdtemp(join(tmpdir(), 'outbox-nats-'))
  const port = await freePort()
  const args = ['--addr', '127.0.0.1', '--port', String(port), '--jetstream', '--store_dir', directory]
  // In a process group of its own: it has to outlive Ctrl-C until the worker has stopped.
  const server = spawn('nats-server', args, { stdio: ['ignore', 'ignore', 'pipe'], detached: true })
  const ended = once(server, 'exit')
  await new Promise((resolve, reject) => {
    createInterface({ input: server.stderr }).on('line', (line) => {
      if (line.includes('Server is ready')) resolve()
    })
    server.once('error', () => reject(new Error(MISSING)))
    server.once('exit', (code) => reject(new Error(`nats-server ended with ${code}`)))
  })
  return {
    url: `nats://127.0.0.1:${port}`,
    async stop() {
      server.kill()
      await ended
      await rm(directory, { recursive: true })
    },
  }
}

async function freePort() {
  const probe = createServer().listen(0, '127.0.0.1')
  await once(probe, 'listening')
  const { port } = probe.address()
  probe.close()
  await once(probe, 'close')
  return port
}
