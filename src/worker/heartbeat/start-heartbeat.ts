import { EventEmitter, once } from 'node:events'
import { Worker as Thread } from 'node:worker_threads'
import type { ThreadScript } from '../../package-files.ts'
import { within } from '../../timeout.ts'
import { restoreHeapFlags } from '../small-heap.ts'
import { runHeartbeat } from './heartbeat.ts'
import type { FromHeartbeat, HeartbeatConfig, ToHeartbeat } from './messages.ts'

/** The process's connection to its heartbeat. */
export interface HeartbeatLink {
  post(message: ToHeartbeat): void
  /** Resolves when renewals have stopped and the registry knows that the process ends, or after this time. */
  stop(options: { readonly clean: boolean; readonly withinMs: number }): Promise<void>
}

export interface LinkOptions {
  readonly config: HeartbeatConfig
  /** What its own thread runs; or in the thread of the handlers, where one that blocks the event loop starves it. */
  readonly thread: ThreadScript | 'inline'
  readonly onMessage: (message: FromHeartbeat) => void
}

/** A thread that cannot start is not retried in a tight loop. */
const RESTART_MS = 500

/** It needs little memory; by default the heap of a thread may grow to several times that of the worker itself. */
const YOUNG_GENERATION_MB = 4

export function startHeartbeat(options: LinkOptions): HeartbeatLink {
  return options.thread === 'inline' ? startInline(options) : startThread(options, options.thread)
}

/** A thread that ends unexpectedly (out of memory, say) is restarted; its `ready` makes the process send its rows. */
function startThread({ config, onMessage }: LinkOptions, script: ThreadScript): HeartbeatLink {
  const served = new Map<string, Extract<ToHeartbeat, { type: 'serve' }>>()
  /** The last one: a new thread must not report that the process has done nothing. */
  let activity: Extract<ToHeartbeat, { type: 'activity' }> | undefined
  /** Sent once, and true from then on. */
  let stoppingMessage: Extract<ToHeartbeat, { type: 'stopping' }> | undefined
  let restartTimer: NodeJS.Timeout | undefined
  let stopping = false
  let thread = open()

  function open(): Thread {
    const opened = new Thread(script.script, {
      eval: script.eval,
      workerData: config,
      execArgv: [],
      name: 'leasehold heartbeat',
      resourceLimits: { maxYoungGenerationSizeMb: YOUNG_GENERATION_MB },
    })
    opened.once('online', restoreHeapFlags)
    opened.on('message', (message: FromHeartbeat) => onMessage(revived(message)))
    opened.on('error', (error) => onMessage({ type: 'trouble', what: 'the thread of the heartbeat', error }))
    opened.on('exit', () => {
      if (!stopping) restartTimer = setTimeout(restart, RESTART_MS)
    })
    return opened
  }

  function restart(): void {
    thread = open()
    for (const message of served.values()) thread.postMessage(message)
    if (activity !== undefined) thread.postMessage(activity)
    if (stoppingMessage !== undefined) thread.postMessage(stoppingMessage)
  }

  return {
    post(message) {
      if (message.type === 'serve') served.set(message.name, message)
      if (message.type === 'activity') activity = message
      if (message.type === 'stopping') stoppingMessage = message
      const known = message.type === 'timing' ? served.get(message.name) : undefined
      if (known !== undefined && message.type === 'timing') {
        served.set(message.name, { ...known, timing: message.timing })
      }
      thread.postMessage(message)
    },
    async stop({ clean, withinMs }) {
      stopping = true
      clearTimeout(restartTimer)
      if (thread.threadId === -1) return
      const over = once(thread, 'exit')
      thread.postMessage({ type: 'stop', clean } satisfies ToHeartbeat)
      // The database may not answer, and the thread would keep the process from exiting.
      if (!(await within(withinMs, over))) await thread.terminate()
    },
  }
}

function startInline({ config, onMessage }: LinkOptions): HeartbeatLink {
  const port = new EventEmitter<{ in: [ToHeartbeat]; stopped: [] }>()
  runHeartbeat(config, {
    post: (message) => {
      queueMicrotask(() => onMessage(message))
      if (message.type === 'stopped') port.emit('stopped')
    },
    onMessage: (listener) => port.on('in', listener),
  })
  return {
    post: (message) => port.emit('in', message),
    async stop({ clean, withinMs }) {
      const over = once(port, 'stopped')
      port.emit('in', { type: 'stop', clean })
      await within(withinMs, over)
    },
  }
}

/** Errors cross a thread as plain fields; this makes them errors. */
function revived(message: FromHeartbeat): FromHeartbeat {
  if (!('error' in message) || typeof message.error !== 'object' || message.error === null) return message
  const { message: text = 'unknown error', ...fields }: { message?: string } = message.error
  return { ...message, error: Object.assign(new Error(text), fields) }
}
