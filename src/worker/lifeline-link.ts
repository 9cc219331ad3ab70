import { EventEmitter, once } from 'node:events'
import { Worker as Thread } from 'node:worker_threads'
import { runLifeline } from './lifeline.ts'
import type { FromLifeline, LifelineConfig, ToLifeline } from './lifeline-messages.ts'

/** The worker's end of its lifeline. */
export interface LifelineLink {
  post(message: ToLifeline): void
  /** Renewals, presence and the goodbye are over when it resolves. */
  stop(): Promise<void>
}

export interface LinkOptions {
  readonly config: LifelineConfig
  /** Where it runs: in a thread of its own, or beside the handlers, where one that blocks starves it. */
  readonly mode: 'thread' | 'inline'
  readonly onMessage: (message: FromLifeline) => void
}

/** The compiled entry, also when this file runs as TypeScript: a thread takes JavaScript only. */
const ENTRY = new URL(
  import.meta.url.endsWith('.ts') ? '../../dist/worker/lifeline-thread.js' : './lifeline-thread.js',
  import.meta.url,
)

/** Where a thread cannot start, trying at once again and again would only burn time. */
const RESTART_MS = 500

/** It keeps little and makes little garbage; by default a thread may grow to several times the worker itself. */
const YOUNG_GENERATION_MB = 4

export function startLifeline(options: LinkOptions): LifelineLink {
  return options.mode === 'thread' ? startThread(options) : startInline(options)
}

/** A thread that ends without being told to (out of memory, say) is started anew; `ready` tells the worker. */
function startThread({ config, onMessage }: LinkOptions): LifelineLink {
  const served = new Map<string, Extract<ToLifeline, { type: 'serve' }>>()
  /** Said once, and true from then on. */
  let farewell: Extract<ToLifeline, { type: 'stopping' }> | undefined
  let again: NodeJS.Timeout | undefined
  let stopping = false
  let thread = open()

  function open(): Thread {
    const opened = new Thread(ENTRY, {
      workerData: config,
      execArgv: [],
      name: 'leasehold lifeline',
      resourceLimits: { maxYoungGenerationSizeMb: YOUNG_GENERATION_MB },
    })
    opened.on('message', (message: FromLifeline) => onMessage(revived(message)))
    opened.on('error', (error) => onMessage({ type: 'trouble', what: 'the lifeline thread', error }))
    opened.on('exit', () => {
      if (!stopping) again = setTimeout(reopen, RESTART_MS)
    })
    return opened
  }

  function reopen(): void {
    thread = open()
    for (const message of served.values()) thread.postMessage(message)
    if (farewell !== undefined) thread.postMessage(farewell)
  }

  return {
    post(message) {
      if (message.type === 'serve') served.set(message.name, message)
      if (message.type === 'stopping') farewell = message
      const known = message.type === 'timing' ? served.get(message.name) : undefined
      if (known !== undefined && message.type === 'timing') {
        served.set(message.name, { ...known, timing: message.timing })
      }
      thread.postMessage(message)
    },
    async stop() {
      stopping = true
      clearTimeout(again)
      if (thread.threadId === -1) return
      const over = once(thread, 'exit')
      thread.postMessage({ type: 'stop' } satisfies ToLifeline)
      await over
    },
  }
}

function startInline({ config, onMessage }: LinkOptions): LifelineLink {
  const line = new EventEmitter<{ in: [ToLifeline]; stopped: [] }>()
  runLifeline(config, {
    post: (message) => {
      queueMicrotask(() => onMessage(message))
      if (message.type === 'stopped') line.emit('stopped')
    },
    onMessage: (listener) => line.on('in', listener),
  })
  return {
    post: (message) => line.emit('in', message),
    async stop() {
      const over = once(line, 'stopped')
      line.emit('in', { type: 'stop' })
      await over
    },
  }
}

/** What crosses a thread as plain fields is an error again. */
function revived(message: FromLifeline): FromLifeline {
  if (!('error' in message) || typeof message.error !== 'object' || message.error === null) return message
  const { message: text = 'unknown error', ...fields }: { message?: string } = message.error
  return { ...message, error: Object.assign(new Error(text), fields) }
}
