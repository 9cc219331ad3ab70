import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, writeFileSync } from 'node:fs'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'

import { startWatchdog } from '../watchdog.ts'
import { eventually } from './eventually.ts'

export interface ProgramCall {
  readonly program: string
  readonly args: readonly string[]
  readonly env?: Readonly<Record<string, string>>
  /** Matches the line of its log that says that it accepts connections. */
  readonly ready?: RegExp
}

/** `kill` ends every process of the server at once, as in a crash. `graceful` sends SIGTERM. */
export type StopHow = 'graceful' | 'kill'

const START_TIMEOUT_MS = 90_000
const SHUTDOWN_TIMEOUT_MS = 20_000

/** A server and its child processes, in their own process group. */
export interface ProcessGroup {
  readonly pid: number
  stop(how: StopHow): Promise<void>
  /** Stops all its threads. From then on it neither answers nor ends, until `thaw()`. */
  freeze(): Promise<void>
  thaw(): void
}

/** The process groups that are running. */
export interface RunningGroups {
  add(pid: number): void
  remove(pid: number): void
}

/** Starts a server and returns when it is ready. It is among `groups` as long as it runs. */
export async function startGroup(call: ProgramCall, groups: RunningGroups): Promise<ProcessGroup> {
  const child = spawn(call.program, call.args, {
    cwd: '/',
    env: { PATH: process.env['PATH'] ?? '', LC_ALL: 'C.UTF-8', ...call.env },
    stdio: ['ignore', 'pipe', 'pipe'],
    detached: true,
  })
  // The pipes are closed by the last process of the group.
  const ended = new Promise<void>((resolve) => child.once('close', () => resolve()))
  const ready = running(child, call)
  const { pid } = child
  // Without a process id there is an error, with which `ready` rejects.
  if (pid === undefined) {
    await ready
    throw new Error(`${call.program} has no process id`)
  }
  const signal = (target: number, name: NodeJS.Signals): void => {
    try {
      process.kill(target, name)
    } catch {
      // The process has ended.
    }
  }
  groups.add(pid)
  void ended.then(() => groups.remove(pid))
  try {
    await ready
  } catch (error) {
    signal(-pid, 'SIGKILL')
    throw error
  }
  return {
    pid,
    async stop(how) {
      signal(-pid, 'SIGCONT')
      if (how === 'graceful') {
        signal(pid, 'SIGTERM')
        const timer = setTimeout(() => signal(-pid, 'SIGKILL'), SHUTDOWN_TIMEOUT_MS)
        await ended
        clearTimeout(timer)
      } else {
        signal(-pid, 'SIGKILL')
        await ended
      }
    },
    async freeze() {
      signal(-pid, 'SIGSTOP')
      await eventually(async () => {
        const states = await threadStates(pid)
        if (states.some((state) => state !== 'T')) throw new Error(`${call.program} has running threads`)
      })
    },
    thaw: () => signal(-pid, 'SIGCONT'),
  }
}

/** The states of all threads of all processes in the group, because a signal reaches them one by one. Linux only. */
async function threadStates(group: number): Promise<string[]> {
  const pids = (await readdir('/proc').catch(() => [])).filter((name) => /^\d+$/.test(name))
  const states = pids.map(async (pid) => {
    const [, processGroup] = await statOf(`/proc/${pid}/stat`)
    if (processGroup !== group) return []
    const threads = await readdir(`/proc/${pid}/task`).catch(() => [])
    return Promise.all(threads.map(async (thread) => (await statOf(`/proc/${pid}/task/${thread}/stat`))[0]))
  })
  return (await Promise.all(states)).flat()
}

/** Returns the state and the process group. The name before them may contain any character. The process may have ended. */
async function statOf(path: string): Promise<[state: string, group: number]> {
  const text = await readFile(path, 'utf8').catch(() => '')
  const [state = 'T', , group = '0'] = text.slice(text.lastIndexOf(')') + 2).split(' ')
  return [text === '' ? 'T' : state, Number(group)]
}

/** Waits until it is ready. The log is read to its end, because otherwise the server would block. */
async function running(child: ChildProcess, { program, ready }: ProgramCall): Promise<void> {
  const { stdout, stderr } = child
  if (stdout === null || stderr === null) throw new Error(`the log of ${program} is not read`)
  const log: string[] = []
  await new Promise<void>((resolve, reject) => {
    const fail = (why: string) => reject(new Error(`${program} ${why}:\n${log.slice(-40).join('\n')}`))
    const timer = setTimeout(() => fail('did not become ready'), START_TIMEOUT_MS)
    for (const input of [stdout, stderr]) {
      createInterface({ input }).on('line', (line) => {
        if (log.length < 1_000) log.push(line)
        if (ready?.test(line) === true) resolve()
      })
    }
    child.once('error', (error) => fail(error.message))
    child.once('exit', (code, signal) => fail(`ended with ${signal ?? code}`))
    child.once('spawn', () => {
      if (ready === undefined) resolve()
    })
    void once(child, 'close').then(
      () => clearTimeout(timer),
      () => clearTimeout(timer),
    )
    timer.unref()
  })
}

/** Writes the running groups into a file, from which the watchdog ends them if this process is killed. */
export function watchGroups(directory: string): RunningGroups & { release(): void } {
  const watchdog = startWatchdog(directory)
  const groups = new Set<number>()
  // Synchronous, so that there is no moment in which a server runs and is not in the file.
  const write = (): void => {
    if (existsSync(directory)) writeFileSync(join(directory, 'groups'), [...groups, ''].join('\n'))
  }
  return {
    add(pid) {
      groups.add(pid)
      write()
    },
    remove(pid) {
      groups.delete(pid)
      write()
    },
    release: () => watchdog.release(),
  }
}
