import { execFile } from 'node:child_process'
import { mkdir, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { promisify } from 'node:util'

import { type TestBroker, useBroker } from './broker.ts'
import { freePort } from './port.ts'
import { findProgram, unwrapped } from './program.ts'

export interface TestRabbit extends TestBroker {
  /** Runs `rabbitmqctl` on it. */
  control(...args: readonly string[]): Promise<void>
}

/**
 * A RabbitMQ node that shares nothing with another on the machine: its own name, ports, directories and port mapper.
 * It takes some seconds to start: one for a file is enough.
 */
export function useRabbit(): TestRabbit {
  let environment: Record<string, string> = {}
  const broker = useBroker({
    program: 'rabbitmq-server',
    install: 'apt-get install rabbitmq-server',
    url: (port) => `amqp://guest:guest@127.0.0.1:${port}`,
    // Erlang starts its port mapper as a daemon that nobody ends; one that runs already it uses.
    async beside(directory, port) {
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
  // Spread, they would be read now: the port is known later.
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
