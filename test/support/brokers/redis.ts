import { type TestBroker, useBroker } from './broker.ts'

/** A Redis that has written what it acknowledges. */
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
