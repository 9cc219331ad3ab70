// Every part of a side runs in a process of its own, so that no heap, timer or compiled code of one helps or hurts another.
import { fork } from 'node:child_process'
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
  const child = fork(ENTRY, [JSON.stringify(order)], {
    execArgv,
    env: { ...process.env, NO_LOG_SUCCESS: '1' },
    stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
  })
  running.add(child)
  let said = ''
  child.stderr.setEncoding('utf8').on('data', (text) => {
    said = (said + text).slice(-4_000)
  })
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
      throw new Error(`${order.label} ended with ${signal ?? code}: ${said}`)
    return answer
  } finally {
    clearTimeout(timer)
    running.delete(child)
  }
}
