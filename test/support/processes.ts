import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'

import { afterAll, expect } from 'vitest'

export interface SpawnOptions {
  readonly cwd?: string
  readonly env?: Readonly<Record<string, string>>
  /** Arguments of node itself. */
  readonly execArgv?: readonly string[]
  /** The program itself. Default: the Node that runs the tests. */
  readonly node?: string
}

export interface Exit {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
}

/** A node process under test. */
export interface TestProcess {
  readonly pid: number
  /** Resolves when it has ended and all of its output was read. */
  readonly exited: Promise<Exit>
  /** Everything it has written so far. */
  readonly output: () => { readonly stdout: string; readonly stderr: string }
  /** Returns the first matching line on stdout, written already or later. */
  line(fits: (line: string) => boolean): Promise<string>
  /** Sends one line to its stdin. */
  send(line: string): void
  /** Sends the signal and waits for the end. */
  kill(signal?: NodeJS.Signals): Promise<Exit>
}

export interface Processes {
  /** Runs a script, its path relative to the project. */
  readonly spawnNode: (script: string, args?: readonly string[], options?: SpawnOptions) => TestProcess
}

const PROJECT = fileURLToPath(new URL('../../', import.meta.url))

/** Child processes of a test file. If one still runs at the end of the file, it is killed and the file fails. */
export function useProcesses(): Processes {
  const started: { readonly command: string; readonly child: ChildProcess; readonly process: TestProcess }[] =
    []

  afterAll(async () => {
    const running = started.filter(({ child }) => child.exitCode === null && child.signalCode === null)
    await Promise.all(running.map(({ process }) => process.kill('SIGKILL')))
    const remaining = running.map(({ command, process }) => `${command}\n${describe(process)}`)
    expect(remaining, 'processes left running by this file').toEqual([])
  })

  return {
    spawnNode(script, args = [], options = {}) {
      const path = new URL(script, `file://${PROJECT}`)
      const command = [...(options.execArgv ?? []), fileURLToPath(path), ...args]
      const child = spawn(options.node ?? process.execPath, command, {
        cwd: options.cwd ?? PROJECT,
        env: { ...process.env, ...options.env },
        stdio: ['pipe', 'pipe', 'pipe'],
      })
      const testProcess = observe(child)
      started.push({ command: command.join(' '), child, process: testProcess })
      return testProcess
    },
  }
}

function observe(child: ReturnType<typeof spawn>): TestProcess {
  const { stdin, stdout, stderr, pid } = child
  if (stdin === null || stdout === null || stderr === null || pid === undefined) {
    throw new Error('node could not be started')
  }
  const written = { stdout: '', stderr: '' }
  const lines: string[] = []
  const waiting = new Set<() => void>()
  const wake = () => {
    for (const check of waiting) check()
  }
  stdout.setEncoding('utf8').on('data', (text: string) => (written.stdout += text))
  stderr.setEncoding('utf8').on('data', (text: string) => (written.stderr += text))
  // A test learns about the end of a process through `exited`, not through a failed write.
  stdin.on('error', () => {})
  createInterface({ input: stdout }).on('line', (line) => {
    lines.push(line)
    wake()
  })
  let exit: Exit | undefined
  const exited = once(child, 'close').then(() => {
    exit = { code: child.exitCode, signal: child.signalCode }
    wake()
    return exit
  })

  const testProcess: TestProcess = {
    pid,
    exited,
    output: () => ({ ...written }),
    send: (line) => void stdin.write(`${line}\n`),
    async kill(signal = 'SIGTERM') {
      child.kill(signal)
      return exited
    },
    async line(fits) {
      return new Promise((resolve, reject) => {
        const check = () => {
          const found = lines.find((line) => fits(line))
          if (found === undefined && exit === undefined) return
          waiting.delete(check)
          if (found !== undefined) resolve(found)
          else reject(new Error(`no such line before the process ended\n${describe(testProcess)}`))
        }
        waiting.add(check)
        check()
      })
    },
  }
  return testProcess
}

function describe(testProcess: TestProcess): string {
  const { stdout, stderr } = testProcess.output()
  return `stdout:\n${stdout}\nstderr:\n${stderr}`
}
