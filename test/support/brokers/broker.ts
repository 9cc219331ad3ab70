import { afterAll, beforeAll, beforeEach } from 'vitest'

import { removeDirectory, temporaryDirectory } from '../directory.ts'
import { freePort } from './port.ts'
import { type ProcessGroup, type ProgramCall, startGroup, type StopHow, watchOver } from './process-group.ts'
import { findProgram } from './program.ts'

/** A server of this file's own, always on the same port, that can be taken away and brought back. */
export interface TestBroker {
  /** Known once the file's hooks have run. */
  readonly url: string
  readonly port: number
  /** Returns when it takes connections. */
  start(): Promise<void>
  /** Returns when its last process is gone. What it had acknowledged it still has after the next start. */
  stop(how?: StopHow): Promise<void>
  restart(how?: StopHow): Promise<void>
  /** It keeps its connections and answers nothing from when this returns, until it is thawed. */
  freeze(): Promise<void>
  thaw(): void
}

export interface BrokerKind {
  readonly program: string
  /** How a person gets it. */
  readonly install: string
  url(port: number): string
  /** What has to run beside the server, for as long as the broker lives. */
  beside?(directory: string, port: number): Promise<{ call: ProgramCall; env: Record<string, string> }>
  call(program: string, directory: string, port: number, env: Record<string, string>): Promise<ProgramCall>
}

/**
 * The broker runs from before the first test of the file until after its last. Where its program is not installed the
 * tests of the file are skipped, and the reason is shown; with LEASEHOLD_REQUIRE_BROKERS=1, as in CI, they fail.
 */
export function useBroker(kind: BrokerKind): TestBroker {
  let program: string | undefined
  let directory = ''
  let port = 0
  let watch: ReturnType<typeof watchOver> | undefined
  let server: ProcessGroup | undefined
  let beside: ProcessGroup | undefined
  let env: Record<string, string> = {}

  let over = false
  let turn: Promise<unknown> = Promise.resolve()

  /** One after the other: a test that ran out of time may still be at it while the file is being ended. */
  async function inTurn(work: () => Promise<void>): Promise<void> {
    const mine = turn.then(work)
    turn = mine.catch(() => {})
    return mine
  }

  async function startServer(): Promise<void> {
    if (over) throw new Error(`${kind.program} is not started any more: its file has ended`)
    if (program === undefined || watch === undefined || server !== undefined) return
    server = await startGroup(await kind.call(program, directory, port, env), watch)
  }

  async function stopServer(how: StopHow): Promise<void> {
    const stopping = server
    server = undefined
    await stopping?.stop(how)
  }

  beforeAll(async () => {
    program = await findProgram(kind.program)
    if (program === undefined) {
      if (process.env['LEASEHOLD_REQUIRE_BROKERS'] === '1') throw new Error(missing(kind))
      process.stderr.write(`skipped: ${missing(kind)}\n`)
      return
    }
    directory = await temporaryDirectory()
    watch = watchOver(directory)
    port = await freePort()
    const companion = await kind.beside?.(directory, port)
    if (companion !== undefined) {
      beside = await startGroup(companion.call, watch)
      env = companion.env
    }
    await inTurn(startServer)
  })

  beforeEach((context) => {
    if (program === undefined) context.skip(missing(kind))
  })

  afterAll(async () => {
    if (program === undefined) return
    await inTurn(async () => {
      over = true
      await stopServer('kill')
      await beside?.stop('kill')
      await removeDirectory(directory)
    })
    watch?.release()
  })

  return {
    get url() {
      return kind.url(port)
    },
    get port() {
      return port
    },
    start: async () => inTurn(startServer),
    stop: async (how = 'graceful') => inTurn(async () => stopServer(how)),
    restart: async (how = 'graceful') =>
      inTurn(async () => {
        await stopServer(how)
        await startServer()
      }),
    freeze: async () => server?.freeze(),
    thaw: () => server?.thaw(),
  }
}

function missing({ program, install }: BrokerKind): string {
  return `${program} is not on the PATH. To run these tests: ${install}`
}
