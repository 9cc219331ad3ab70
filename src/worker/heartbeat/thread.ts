/** The entry file of the heartbeat's thread. */
import { parentPort, workerData } from 'node:worker_threads'
import { runHeartbeat } from './heartbeat.ts'
import type { FromHeartbeat, HeartbeatConfig, ToHeartbeat } from './messages.ts'

const port = parentPort
if (port === null) throw new Error('the heartbeat is started by a worker process, in a thread')

runHeartbeat(
  // start-heartbeat.ts passes this.
  workerData as HeartbeatConfig,
  {
    post: (message: FromHeartbeat) => port.postMessage(cloneable(message)),
    onMessage: (listener) => {
      port.on('message', (message: ToHeartbeat) => {
        listener(message)
        // Its last message; without a listener nothing keeps the thread alive.
        if (message.type === 'stop') port.unref()
      })
    },
  },
)

/** Of an error only name and message survive the way to another thread; the code is needed as well. */
function cloneable(message: FromHeartbeat): FromHeartbeat {
  if (!('error' in message) || !(message.error instanceof Error)) return message
  const { error } = message
  const code: unknown = 'code' in error ? error.code : undefined
  return { ...message, error: { name: error.name, message: error.message, code } }
}
