// Deliveries to a receiver on loopback: by a dispatcher, and by a bare loop of signed requests. Shared by the command
// `webhooks` and the scenario of the same name.
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import { runSide } from './side-process.mjs'

/** The receiver ends with `stop`, and with this process. */
export async function startReceiver(delayMs) {
  const receiver = fork(fileURLToPath(new URL('receiver.mjs', import.meta.url)), [String(delayMs)])
  const [{ url }] = await once(receiver, 'message')
  return { url, stop: () => receiver.disconnect() }
}

/** `dist`: the URL of the directory of a build; `settings`: those of the dispatcher. */
export function webhookSides({ dist, receiver, endpoints, concurrency }, dispatchers) {
  const common = { system: 'webhooks', dist, receiver, endpoints, concurrency }
  return [
    { label: 'a bare loop of signed requests', options: { ...common, kind: 'bare' } },
    ...dispatchers.map(({ label, settings }) => ({
      label,
      options: { ...common, kind: 'dispatcher', settings },
    })),
  ]
}

const DATABASE = 'bench_webhooks'

export async function measureWebhooks(server, { label, options }, { rows, timeoutMs }) {
  await server.dropDatabase(DATABASE)
  const url = await server.createDatabase(DATABASE)
  try {
    const order = { label, side: options, url, events: rows, serverPid: server.pid }
    await runSide({ ...order, part: 'migrate' }, { timeoutMs })
    await server.vacuum(url)
    await server.checkpoint()
    return await runSide({ ...order, part: 'drain' }, { timeoutMs })
  } finally {
    await server.dropDatabase(DATABASE)
  }
}
