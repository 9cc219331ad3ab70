import { type TestBroker, useBroker } from './broker.ts'

/** A NATS server with JetStream, whose streams are kept in files. */
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
