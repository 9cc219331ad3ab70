// Every part of a side runs in a process of its own, so that no heap, timer or compiled code of one helps or hurts another.
import { fork, spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'

const ENTRY = fileURLToPath(new URL('run-side.mjs', import.meta.url))

/** Children that are running; they end with the run, however that ends. */
const running = new Set()

export function killAll() {
  for (const child of running) child.kill('SIGKILL')
}

/** Returns what it measured, or throws what went wrong; no longer than the time it is given. */
export async function runSide(order, { timeoutMs, execArgv = [] }) {
  const { child, said } = start(ENTRY, [JSON.stringify(order)], execArgv)
  let answer
  child.on('message', (message) => {
    answer = message
  })
  let late = false
  const timer = setTimeout(() => {
    late = true
    child.kill('SIGKILL')
  }, timeoutMs)
  try {
    const [code, signal] = await once(child, 'close')
    if (late) throw new Error(`${order.label} did not end within ${timeoutMs / 1_000} s`)
    if (answer?.error !== undefined) throw new Error(`${order.label}: ${answer.error}`)
    if (answer === undefined || code !== 0)
      throw new Error(`${order.label} ended with ${signal ?? code}: ${said()}`)
    return answer
  } finally {
    clearTimeout(timer)
  }
}

/**
 * Starts a program of `processes/`, which answers calls until it is stopped or killed (`serve` in `processes/calls.mjs`).
 * No call may take longer than `timeoutMs`.
 */
export function startProcess(file, { label, timeoutMs }) {
  const { child, said } = start(fileURLToPath(new URL(`processes/${file}`, import.meta.url)), [], [])
  const closed = once(child, 'close')
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
    /** Resolves when the process has ended. */
    async kill() {
      child.kill('SIGKILL')
      await closed
    },
  }
}

/** Starts another program on the same Node, with what it needs in its environment and directory. */
export function startProgram(args, { cwd, env = {} }) {
  const child = spawn(process.execPath, args, {
    cwd,
    env: { ...process.env, ...env },
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  const said = tracked(child)
  const closed = once(child, 'close')
  let isKilled = false
  const ended = (async () => {
    const [code, signal] = await closed
    if (!isKilled) throw new Error(`it ended with ${signal ?? code}: ${said()}`)
  })()
  // Nobody may be waiting for it at the moment.
  ended.catch(() => {})
  return {
    pid: child.pid,
    /** Rejects when the program ends without having been killed. */
    ended,
    async kill(signal = 'SIGKILL') {
      isKilled = true
      child.kill(signal)
      await closed
    },
  }
}

function start(entry, args, execArgv) {
  const child = fork(entry, args, {
    execArgv,
    env: { ...process.env, NO_LOG_SUCCESS: '1' },
    stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
  })
  return { child, said: tracked(child) }
}

/** The child ends with the run. Returns the end of what it says on stderr. */
function tracked(child) {
  running.add(child)
  child.once('close', () => running.delete(child))
  let said = ''
  child.stderr.setEncoding('utf8').on('data', (text) => {
    said = (said + text).slice(-4_000)
  })
  return () => said
}
