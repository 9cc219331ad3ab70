/** The entry of the lifeline's thread. */
import { parentPort, workerData } from 'node:worker_threads'
import { runLifeline } from './lifeline.ts'
import type { FromLifeline, LifelineConfig, ToLifeline } from './lifeline-messages.ts'

const port = parentPort
if (port === null) throw new Error('the lifeline is started by a worker, in a thread')

runLifeline(
  // Whoever starts the thread hands it this; see lifeline-link.ts.
  workerData as LifelineConfig,
  {
    post: (message: FromLifeline) => port.postMessage(cloneable(message)),
    onMessage: (listener) => {
      port.on('message', (message: ToLifeline) => {
        listener(message)
        // Its last message; without a listener nothing keeps the thread alive.
        if (message.type === 'stop') port.unref()
      })
    },
  },
)

/** Only a name and a message of an error survive the way to another thread; its code is worth as much. */
function cloneable(message: FromLifeline): FromLifeline {
  if (!('error' in message) || !(message.error instanceof Error)) return message
  const { error } = message
  const code: unknown = 'code' in error ? error.code : undefined
  return { ...message, error: { name: error.name, message: error.message, code } }
}
