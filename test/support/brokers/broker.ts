import { execFile } from 'node:child_process'
import { mkdir, writeFile, access, constants, realpath } from 'node:fs/promises'
import { dirname, join, basename, delimiter } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, beforeEach } from 'vitest'
import { removeDirectory, temporaryDirectory } from '../directory.ts'
import { freePort } from '../free-port.ts'
import {
  type ProcessGroup,
  type ProgramCall,
  startGroup,
  type StopHow,
  watchGroups,
} from './process-group.ts'

export { freePort }

/** A server of one test file, always on the same port, that can be stopped and restarted. */
export interface TestBroker {
  /** Available after the hooks of the file have run. */
  readonly url: string
  readonly port: number
  /** Returns when it accepts connections. */
  start(): Promise<void>
  /** Returns when its last process has ended. Everything it had acknowledged is there after the next start. */
  stop(how?: StopHow): Promise<void>
  restart(how?: StopHow): Promise<void>
  /** It keeps its connections and answers nothing until `thaw()`. */
  freeze(): Promise<void>
  thaw(): void
}

export interface BrokerKind {
  readonly program: string
  /** The command that installs it. */
  readonly install: string
  url(port: number): string
  /** A program that must run as long as the broker exists. */
  companion?(directory: string, port: number): Promise<{ call: ProgramCall; env: Record<string, string> }>
  call(program: string, directory: string, port: number, env: Record<string, string>): Promise<ProgramCall>
}

/**
 * The broker runs from before the first test of the file until after its last. If its program is not installed, the
 * tests of the file are skipped and the reason is printed; with LEASEHOLD_REQUIRE_BROKERS=1, as in CI, they fail.
 */
export function useBroker(kind: BrokerKind): TestBroker {
  let program: string | undefined
  let directory = ''
  let port = 0
  let watch: ReturnType<typeof watchGroups> | undefined
  let server: ProcessGroup | undefined
  let companion: ProcessGroup | undefined
  let env: Record<string, string> = {}

  let hasEnded = false
  let lastTask: Promise<unknown> = Promise.resolve()

  /** Runs one after the other: a test that timed out may still be running while the file ends. */
  async function inOrder(work: () => Promise<void>): Promise<void> {
    const task = lastTask.then(work)
    lastTask = task.catch(() => {})
    return task
  }

  async function startServer(): Promise<void> {
    if (hasEnded) throw new Error(`${kind.program} cannot be started after the end of its test file`)
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
    watch = watchGroups(directory)
    port = await freePort()
    const started = await kind.companion?.(directory, port)
    if (started !== undefined) {
      companion = await startGroup(started.call, watch)
      env = started.env
    }
    await inOrder(startServer)
  })

  beforeEach((context) => {
    if (program === undefined) context.skip(missing(kind))
  })

  afterAll(async () => {
    if (program === undefined) return
    await inOrder(async () => {
      hasEnded = true
      await stopServer('kill')
      await companion?.stop('kill')
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
    start: async () => inOrder(startServer),
    stop: async (how = 'graceful') => inOrder(async () => stopServer(how)),
    restart: async (how = 'graceful') =>
      inOrder(async () => {
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

/** A NATS server with JetStream and file storage. */
export function useNats(): TestBroker {
  return useBroker({
    program: 'nats-server',
    install: 'apt-get install nats-server',
    url: (port) => `nats://127.0.0.1:${port}`,
    call: async (program, directory, port) => ({
      program,
      args: ['-a', '127.0.0.1', '-p', String(port), '-js', '-sd', `${directory}/jetstream`],
      ready: /Server is ready/,
    }),
  })
}

/** A Redis that writes to disk before it acknowledges. */
export function useRedis(): TestBroker {
  return useBroker({
    program: 'redis-server',
    install: 'apt-get install redis-server',
    url: (port) => `redis://127.0.0.1:${port}`,
    call: async (program, directory, port) => ({
      program,
      args: Object.entries({
        port: String(port),
        bind: '127.0.0.1',
        dir: directory,
        daemonize: 'no',
        appendonly: 'yes',
        appendfsync: 'always',
        save: '',
      }).flatMap(([name, value]) => [`--${name}`, value]),
      ready: /Ready to accept connections/,
    }),
  })
}

export interface TestRabbit extends TestBroker {
  /** Runs `rabbitmqctl` on it. */
  control(...args: readonly string[]): Promise<void>
}

/**
 * A RabbitMQ node that shares nothing with other nodes on the machine: it has its own name, ports, directories and port
 * mapper. It takes some seconds to start, so a file should use only one.
 */
export function useRabbit(): TestRabbit {
  let environment: Record<string, string> = {}
  const broker = useBroker({
    program: 'rabbitmq-server',
    install: 'apt-get install rabbitmq-server',
    url: (port) => `amqp://guest:guest@127.0.0.1:${port}`,
    // Erlang would start its port mapper as a daemon that is never ended, but it uses one that already runs.
    async companion(directory, port) {
      const epmdPort = String(await freePort())
      const epmd = await findProgram('epmd')
      if (epmd === undefined) throw new Error('epmd, which comes with Erlang, is not on the PATH')
      const home = join(directory, 'home')
      await mkdir(home)
      await writeFile(join(directory, 'plugins'), '[].\n')
      return {
        call: { program: epmd, args: ['-address', '127.0.0.1', '-port', epmdPort] },
        env: {
          HOME: home,
          ERL_EPMD_PORT: epmdPort,
          ERL_EPMD_ADDRESS: '127.0.0.1',
          RABBITMQ_NODENAME: `test${port}@localhost`,
          RABBITMQ_NODE_IP_ADDRESS: '127.0.0.1',
          RABBITMQ_NODE_PORT: String(port),
          RABBITMQ_DIST_PORT: String(await freePort()),
          RABBITMQ_MNESIA_BASE: join(directory, 'mnesia'),
          RABBITMQ_LOG_BASE: join(directory, 'log'),
          RABBITMQ_LOGS: '-',
          RABBITMQ_ENABLED_PLUGINS_FILE: join(directory, 'plugins'),
          RABBITMQ_CONF_ENV_FILE: join(directory, 'no-such-file'),
          RABBITMQ_CONFIG_FILE: join(directory, 'rabbitmq'),
          RABBITMQ_GENERATED_CONFIG_DIR: join(directory, 'generated'),
          RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS: '-kernel inet_dist_use_interface {127,0,0,1}',
        },
      }
    },
    async call(program, _directory, _port, env) {
      environment = env
      return { program: await unwrapped(program), args: [], env, ready: /Server startup complete/ }
    },
  })
  // Not a spread, which would read the getters before the port is known.
  return Object.assign(broker, {
    async control(...args: readonly string[]) {
      const server = await findProgram('rabbitmq-server')
      if (server === undefined) throw new Error('rabbitmq-server is not on the PATH')
      const program = join(dirname(await unwrapped(server)), 'rabbitmqctl')
      const env = { PATH: process.env['PATH'] ?? '', LC_ALL: 'C.UTF-8', ...environment }
      await promisify(execFile)(program, args, { cwd: '/', env })
    },
  })
}

/** Debian's directories of servers, which are not in the PATH of an ordinary user. */
const ALSO_IN = ['/usr/local/sbin', '/usr/sbin', '/sbin']

/** Returns the path of the program, or `undefined` if it is not installed. */
export async function findProgram(name: string): Promise<string | undefined> {
  for (const directory of [...(process.env['PATH'] ?? '').split(delimiter), ...ALSO_IN]) {
    const candidate = join(directory, name)
    const found = await access(candidate, constants.X_OK).then(
      () => true,
      () => false,
    )
    if (directory !== '' && found) return candidate
  }
  return undefined
}

/** Debian's rabbitmq-server is a wrapper that changes the account and drops the environment. Returns what it wraps. */
async function unwrapped(program: string): Promise<string> {
  const real = await realpath(program)
  return basename(real) === 'rabbitmq-script-wrapper' ? join(dirname(real), 'rabbitmq-server') : program
}
