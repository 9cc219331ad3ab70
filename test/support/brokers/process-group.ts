import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, writeFileSync } from 'node:fs'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'

import { eventually } from './eventually.ts'

export interface ProgramCall {
  readonly program: string
  readonly args: readonly string[]
  readonly env?: Readonly<Record<string, string>>
  /** The line of its log that says that it takes connections. */
  readonly ready?: RegExp
}

/** `kill`: every process of it ends at once, as in a crash. `graceful`: it is asked, and takes its leave. */
export type StopHow = 'graceful' | 'kill'

const LONGEST_START_MS = 90_000
const LONGEST_GOODBYE_MS = 20_000

/** A server and whatever it starts, in a process group of its own. */
export interface ProcessGroup {
  readonly pid: number
  stop(how: StopHow): Promise<void>
  /** Returns when it stands still: it neither answers nor ends any more, until it is thawed. */
  freeze(): Promise<void>
  thaw(): void
}

/** The process groups that run at the moment. */
export interface Ledger {
  add(pid: number): void
  remove(pid: number): void
}

/** Returns when the server says that it is ready. The ledger has it for as long as it runs. */
export async function startGroup(call: ProgramCall, ledger: Ledger): Promise<ProcessGroup> {
  const child = spawn(call.program, call.args, {
    cwd: '/',
    env: { PATH: process.env['PATH'] ?? '', LC_ALL: 'C.UTF-8', ...call.env },
    stdio: ['ignore', 'pipe', 'pipe'],
    detached: true,
  })
  // Its last process closes the pipes: only then is the group gone.
  const gone = new Promise<void>((resolve) => child.once('close', () => resolve()))
  const ready = running(child, call)
  const { pid } = child
  // Where there is no process id there is an error.
  if (pid === undefined) {
    await ready
    throw new Error(`${call.program} has no process id`)
  }
  const signal = (target: number, name: NodeJS.Signals): void => {
    try {
      process.kill(target, name)
    } catch {
      // It has ended by itself.
    }
  }
  ledger.add(pid)
  void gone.then(() => ledger.remove(pid))
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
        const patience = setTimeout(() => signal(-pid, 'SIGKILL'), LONGEST_GOODBYE_MS)
        await gone
        clearTimeout(patience)
      } else {
        signal(-pid, 'SIGKILL')
        await gone
      }
    },
    async freeze() {
      signal(-pid, 'SIGSTOP')
      await eventually(async () => {
        const states = await threadStates(pid)
        if (states.some((state) => state !== 'T')) throw new Error(`${call.program} does not stand still`)
      })
    },
    thaw: () => signal(-pid, 'SIGCONT'),
  }
}

/** Of every thread of every process in the group: a signal reaches them one after the other. Linux tells. */
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

/** State and process group; the name before them may hold anything. It may end while it is being looked at. */
async function statOf(path: string): Promise<[state: string, group: number]> {
  const text = await readFile(path, 'utf8').catch(() => '')
  const [state = 'T', , group = '0'] = text.slice(text.lastIndexOf(')') + 2).split(' ')
  return [text === '' ? 'T' : state, Number(group)]
}

/** Its log is read to the end, or the server would wait for its reader. */
async function running(child: ChildProcess, { program, ready }: ProgramCall): Promise<void> {
  const { stdout, stderr } = child
  if (stdout === null || stderr === null) throw new Error(`the log of ${program} is not read`)
  const log: string[] = []
  await new Promise<void>((resolve, reject) => {
    const fail = (why: string) => reject(new Error(`${program} ${why}:\n${log.slice(-40).join('\n')}`))
    const patience = setTimeout(() => fail('did not become ready'), LONGEST_START_MS)
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
      () => clearTimeout(patience),
      () => clearTimeout(patience),
    )
    patience.unref()
  })
}

/** Ends the groups of the ledger when this process is killed; `release` once there is nothing to end. */
export function watchOver(directory: string): Ledger & { release(): void } {
  const script = fileURLToPath(new URL('watch.mjs', import.meta.url))
  const watch = spawn(process.execPath, [script, directory], {
    stdio: ['pipe', 'ignore', 'ignore'],
    detached: true,
  })
  watch.unref()
  const groups = new Set<number>()
  // At once, so that no moment is left in which a server runs and is not in it.
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
    release: () => watch.stdin.destroy(),
  }
}
