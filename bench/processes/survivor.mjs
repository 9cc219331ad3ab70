// A worker process of one side whose handlers end when the bench says so. Everything that happens to a job is a line of a file.
import { appendFileSync } from 'node:fs'
import { SIDES } from '../survival/sides.mjs'
import { withClient } from '../client.mjs'
import { serve } from './calls.mjs'

let open
const opened = new Promise((resolve) => {
  open = resolve
})

serve({
  migrate: async (side, options) => SIDES[side].migrate(options),

  async write(side, { url, jobs }) {
    const { write } = SIDES[side]
    if (write.send !== undefined) return write.send({ url, jobs })
    return withClient(url, async (client) => {
      for (const job of jobs) await client.query(write.text, [JSON.stringify({ job })])
    })
  },

  /** `name`: what this process is called in the record. `gated`: handlers wait for `open`; otherwise they take 100 ms. `obeys`: they stop when their signal fires. */
  async start(side, { url, build, file, name, gated, obeys }) {
    const say = (line) =>
      appendFileSync(file, `${JSON.stringify({ at: Date.now(), process: name, ...line })}\n`)
    await SIDES[side].start({
      url,
      build,
      async handle({ job, attempt, signal }) {
        say({ what: 'start', job, attempt })
        let isRunning = true
        const { promise: aborted, reject } = Promise.withResolvers()
        aborted.catch(() => {})
        signal?.addEventListener('abort', () => {
          if (!isRunning) return
          say({ what: 'told', job, how: 'signal' })
          // Otherwise it is the kind of handler that goes on although it was told to stop.
          if (obeys) reject(new Error('stopped by its signal'))
        })
        if (gated) await Promise.race([opened, aborted])
        else await new Promise((resolve) => setTimeout(resolve, 100))
        isRunning = false
        say({ what: 'end', job, attempt })
      },
      told: (how) => say({ what: 'told', how }),
      trouble: (message) => say({ what: 'trouble', message: String(message).slice(0, 300) }),
    })
  },

  open: async () => open(),

  /** Blocks the event loop, and ends the handlers after that. Answers before. */
  async block(ms) {
    setTimeout(() => {
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms)
      open()
    }, 50)
  },
})
