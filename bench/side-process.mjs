// Every part of a side runs in a process of its own, so that no heap, timer or compiled code of one helps or hurts another.
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'

const ENTRY = fileURLToPath(new URL('run-side.mjs', import.meta.url))
const LOAD_ENTRY = fileURLToPath(new URL('run-load.mjs', import.meta.url))

/** Children that are running; they end with the run, however that ends. */
const running = new Set()

export function killAll() {
  for (const child of running) child.kill('SIGKILL')
}

/** `killAll` ends this process too, until the returned function is called. */
export function endWithRun(child) {
  running.add(child)
  return () => running.delete(child)
}

function start(entry, order, options) {
  const child = fork(entry, [JSON.stringify(order)], {
    env: { ...process.env, NO_LOG_SUCCESS: '1' },
    stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
    ...options,
  })
  const release = endWithRun(child)
  child.once('exit', release)
  let said = ''
  child.stderr.setEncoding('utf8').on('data', (text) => {
    said = (said + text).slice(-4_000)
  })
  return { child, said: () => said }
}

/** Returns what it measured, or throws what went wrong; no longer than the time it is given. */
export async function runSide(order, { timeoutMs, execArgv = [] }) {
  const { child, said } = start(ENTRY, order, { execArgv })
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
 * A process that produces, or relays, until it is stopped. `ask` sends it a question and resolves with the answer, in the
 * order in which they were asked.
 */
export async function startLoadProcess(order, { timeoutMs }) {
  const { child, said } = start(LOAD_ENTRY, order, { serialization: 'advanced' })
  const waiting = []
  child.on('message', ({ error, answer }) => {
    const question = waiting.shift()
    if (error === undefined) question?.resolve(answer)
    else question?.reject(new Error(`${order.label}: ${error}`))
  })
  // Not `close`, which does not come after this side of the channel was disconnected.
  const ended = once(child, 'exit').then(([code, signal]) => {
    const error = new Error(`${order.label} ended with ${signal ?? code}: ${said()}`)
    for (const { reject } of waiting.splice(0)) reject(error)
    return error
  })
  const answered = async () => {
    const timer = setTimeout(() => {
      for (const { reject } of waiting.splice(0))
        reject(new Error(`${order.label} did not answer within ${timeoutMs / 1_000} s`))
      child.kill('SIGKILL')
    }, timeoutMs)
    try {
      return await new Promise((resolve, reject) => {
        waiting.push({ resolve, reject })
      })
    } finally {
      clearTimeout(timer)
    }
  }
  try {
    // Its first message says that it is ready.
    await answered()
  } catch (error) {
    child.kill('SIGKILL')
    throw error
  }
  return {
    async ask(question, values = {}) {
      if (!child.connected) throw await ended
      const answer = answered()
      child.send({ question, ...values })
      return answer
    },
    async end() {
      if (child.connected) child.disconnect()
      await ended
    },
    kill() {
      child.kill('SIGKILL')
    },
  }
}
