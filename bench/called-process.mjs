// Processes that run until they are killed: programs of `processes/`, which answer calls.
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import { endWithRun } from './side-process.mjs'

const SHOWN_CHARACTERS = 4_000

/**
 * Starts a program of `processes/`, which answers calls until it is killed (`serve` in `processes/calls.mjs`). Node has no
 * flags. No call may take longer than `timeoutMs`.
 */
export function startProcess(file, { label, timeoutMs }) {
  const child = fork(fileURLToPath(new URL(`processes/${file}`, import.meta.url)), [], {
    execArgv: [],
    stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
  })
  const { said, ended, kill } = watched(child, label)
  const open = new Map()
  const listeners = new Set()
  let calls = 0
  child.on('message', ({ call, report, result, error }) => {
    if (report !== undefined) for (const listener of listeners) listener(report)
    else if (error === undefined) open.get(call)?.resolve(result)
    else open.get(call)?.reject(new Error(`${label}: ${error}`))
  })
  child.once('close', (code, signal) => {
    for (const { reject } of open.values())
      reject(new Error(`${label} ended with ${signal ?? code}: ${said()}`))
  })
  return {
    pid: child.pid,
    async call(name, ...args) {
      calls += 1
      const call = calls
      const { promise, resolve, reject } = Promise.withResolvers()
      open.set(call, { resolve, reject })
      const timer = setTimeout(() => {
        reject(new Error(`${label}: ${name} took longer than ${timeoutMs / 1_000} s`))
      }, timeoutMs)
      child.send({ call, name, args }, (error) => {
        if (error) reject(new Error(`${label} has ended: ${said()}`))
      })
      try {
        return await promise
      } finally {
        clearTimeout(timer)
        open.delete(call)
      }
    },
    /** What the process reports without having been asked. */
    onReport(listener) {
      listeners.add(listener)
    },
    ended,
    kill,
  }
}

/**
 * It ends with the run. `said`: the end of what it has written to stderr. `ended` rejects when it ends without having been
 * killed. `kill` resolves when it has ended.
 */
function watched(child, label) {
  const release = endWithRun(child)
  const closed = once(child, 'close')
  let said = ''
  child.stderr.setEncoding('utf8').on('data', (text) => {
    said = (said + text).slice(-SHOWN_CHARACTERS)
  })
  let isKilled = false
  const ended = (async () => {
    const [code, signal] = await closed
    release()
    if (!isKilled) throw new Error(`${label} ended with ${signal ?? code}: ${said}`)
  })()
  // Nobody may be waiting for it at the moment.
  ended.catch(() => {})
  return {
    said: () => said,
    ended,
    kill: async (signal = 'SIGKILL') => {
      isKilled = true
      child.kill(signal)
      await closed
    },
  }
}
