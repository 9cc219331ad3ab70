/** What a supervisor does with its processes. These are not real here, so that they do whatever a test wants at once. */
import type { ChildProcess } from 'node:child_process'
import { EventEmitter } from 'node:events'
import { describe, expect, it, onTestFinished } from 'vitest'
import { leaseTable } from '../lease/index.ts'
import { createLog } from '../observe/log.ts'
import { fingerprint, type FromSupervisor, type ToSupervisor } from './supervised.ts'
import { Supervisor } from './supervisor.ts'

class FakeProcess extends EventEmitter {
  readonly connected = true
  readonly heard: FromSupervisor['type'][] = []
  readonly pid: number

  constructor(pid: number) {
    super()
    this.pid = pid
  }

  send(message: FromSupervisor): void {
    this.heard.push(message.type)
  }

  kill(signal: NodeJS.Signals): void {
    this.end(null, signal)
  }

  says(message: ToSupervisor): void {
    this.emit('message', message)
  }

  ready(otherTables: readonly string[] = []): void {
    this.says({ type: 'ready', otherTables })
  }

  end(code: number | null, signal: NodeJS.Signals | null = null): void {
    this.emit('exit', code, signal)
  }
}

interface Entry {
  readonly msg: string
  readonly worker?: string
  readonly err?: { readonly message: string; readonly stack?: string }
}

/** A supervisor of so many processes, whose first worker id is `w-1`. */
function supervisorOf(count: number, { readyWithinMs = 600_000 } = {}) {
  const processes: FakeProcess[] = []
  const evicted: string[] = []
  const left: string[][] = []
  const entries: Entry[] = []
  const failures: Error[] = []
  const write = (line: string): void => void entries.push(JSON.parse(line) as Entry)
  const supervisor = new Supervisor({
    id: 'w',
    processes: count,
    start() {
      const failure = failures.shift()
      if (failure !== undefined) throw failure
      const started = new FakeProcess(processes.length + 1)
      processes.push(started)
      // oxlint-disable-next-line typescript/no-unsafe-type-assertion -- the part of it that a supervisor uses
      return started as unknown as ChildProcess
    },
    evict: async (id) => void evicted.push(id),
    reapExcept: (tables) => void left.push([...tables]),
    stopWithinMs: 1_000,
    readyWithinMs,
    log: createLog({ level: 'info', format: 'json', write }),
  })
  onTestFinished(async () => {
    const stopped = supervisor.stop()
    for (const each of processes) each.end(0)
    await stopped
  })
  /** The process with this number, once it was started. */
  async function started(number: number): Promise<FakeProcess> {
    await expect.poll(() => processes.length).toBeGreaterThanOrEqual(number)
    const found = processes[number - 1]
    if (found === undefined) throw new Error(`${number} was not started`)
    return found
  }
  const messages = (): string[] => entries.map(({ msg }) => msg)
  return { supervisor, processes, evicted, left, entries, failures, started, messages }
}

/** One process, which is ready. */
async function runningSupervisor() {
  const all = supervisorOf(1)
  const starting = all.supervisor.start()
  const first = await all.started(1)
  first.ready()
  await starting
  return { ...all, first }
}

const LEAVES = 'a worker process stops without having been told to, and another one is started'

describe('a process', () => {
  it('that never becomes ready is killed, and another one is started', async () => {
    const { supervisor, started, messages } = supervisorOf(1, { readyWithinMs: 20 })
    await supervisor.start()
    expect(messages()[0]).toBe('a process did not become ready in time, and is killed')
    const second = await started(2)
    second.ready()
    expect(await supervisor.readiness()).toBe('1 of 1 are ready')
  })

  it.each([{ code: 'SETTING_INVALID' as const }, { stack: 'Error: no topic\n    at open' }])(
    'that is refused at the first start is the error of the supervisor: %j',
    async (what) => {
      const { supervisor, processes, started } = supervisorOf(3)
      const starting = supervisor.start()
      const first = await started(1)
      first.says({ type: 'refused', message: 'no topic', ...what })
      await expect(starting).rejects.toMatchObject({ message: 'no topic', ...what })
      expect(processes).toHaveLength(1)
    },
  )

  it('that the operating system cannot start is tried again later, and a roll-over leaves the old one running', async () => {
    const { supervisor, failures, started, entries, first } = await runningSupervisor()
    failures.push(new Error('spawn ENOMEM'))
    supervisor.rollOver()
    await expect.poll(() => entries.at(-1)).toMatchObject({ worker: 'w-2', err: { message: 'spawn ENOMEM' } })
    expect(await supervisor.readiness()).toBe('1 of 1 are ready')
    expect(first.heard).toEqual([])

    failures.push(new Error('spawn ENOMEM'))
    first.end(1)
    const third = await started(2)
    third.ready()
    expect(await supervisor.readiness()).toBe('1 of 1 are ready')
  })

  it('that exits with code 0 is evicted like any other: a handler may have called process.exit()', async () => {
    const { first, evicted } = await runningSupervisor()
    first.end(0)
    await expect.poll(() => evicted).toEqual(['w-1'])
  })

  it('that stops by itself is not ready, is replaced while it finishes, and its error is logged when it has ended', async () => {
    const { supervisor, first, started, entries, messages } = await runningSupervisor()
    first.says({ type: 'stopping' })
    await expect(supervisor.readiness()).rejects.toThrow('0 of 1 are ready')
    const second = await started(2)
    second.ready()
    expect(await supervisor.readiness()).toBe('1 of 1 are ready')
    expect(first.heard).toEqual([])
    first.says({ type: 'refused', message: 'nobody caught it', stack: 'Error: nobody caught it' })
    first.end(1)
    await expect
      .poll(() => entries.at(-1))
      .toMatchObject({
        msg: 'a worker process has ended',
        worker: 'w-1',
        err: { message: 'nobody caught it' },
      })
    expect(messages().filter((msg) => msg === LEAVES)).toHaveLength(1)
  })

  it('has as long to stop as its settings say, also if they have changed', async () => {
    const { supervisor, first } = await runningSupervisor()
    const before = supervisor.stopWithinMs
    first.says({ type: 'stopWithin', ms: 61_000 })
    expect(supervisor.stopWithinMs - before).toBe(60_000)
    expect(supervisor.stopText()).toBe('1 process, which may take up to 61 s')
  })

  it.each([
    ['SIGTERM', true],
    ['SIGINT', true],
    ['SIGKILL', false],
  ] as const)(
    'that %s ends while it loads was told to stop by whoever stops the supervisor: clean is %s',
    async (signal, clean) => {
      const { supervisor, started } = supervisorOf(1)
      const starting = supervisor.start()
      const first = await started(1)
      const stopped = supervisor.stop()
      first.end(null, signal)
      expect(await stopped).toEqual({ clean })
      await starting
    },
  )
})

it('a roll-over that is asked for during the start follows it: a process may have read the old config file', async () => {
  const { supervisor, started } = supervisorOf(1)
  const starting = supervisor.start()
  const first = await started(1)
  supervisor.rollOver()
  first.ready()
  await starting
  const second = await started(2)
  second.ready()
  await expect.poll(() => first.heard).toEqual(['stop'])
  first.end(0)
  expect(await supervisor.readiness()).toBe('1 of 1 are ready')
})

it('leaves tables that a process declares otherwise to it, for as long as it is ready', async () => {
  const { supervisor, first, left, started } = await runningSupervisor()
  expect(left.at(-1)).toEqual([])
  supervisor.rollOver()
  const second = await started(2)
  second.ready(['app.orders'])
  await expect.poll(() => left.at(-1)).toEqual(['app.orders'])
  await expect.poll(() => first.heard).toEqual(['stop'])
  first.end(0)
  await expect.poll(() => left.length).toBe(3)
  expect(left.at(-1)).toEqual(['app.orders'])
  second.end(1)
  await expect.poll(() => left.at(-1)).toEqual([])
})

describe('the fingerprint of a declaration', () => {
  const handle = async (): Promise<void> => {}
  const run = async (): Promise<Record<string, number>> => Promise.resolve({})
  const of = (max: number, retainMs: number, version = '1.0.0'): string => {
    const table = leaseTable({
      table: 'app.orders',
      claimable: 'true',
      attempts: { max },
      outcomes: { dead: { dead: 'true' } },
    })
    return fingerprint(
      { name: 'orders', table, handle, maintenance: { everyMs: 1_000, settings: { retainMs }, run } },
      version,
    )
  }

  it('changes with the table, with the settings of its maintenance, and with the release', () => {
    expect(of(3, 1_000)).toBe(of(3, 1_000))
    expect(new Set([of(3, 1_000), of(4, 1_000), of(3, 2_000), of(3, 1_000, '1.0.1')]).size).toBe(4)
  })
})
