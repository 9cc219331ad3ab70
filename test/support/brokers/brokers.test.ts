import { createConnection } from 'node:net'
import { once } from 'node:events'
import { describe, expect, it } from 'vitest'

import { type TestBroker, useNats, useRabbit, useRedis } from './broker.ts'

async function answers({ port }: TestBroker): Promise<boolean> {
  const socket = createConnection(port, '127.0.0.1')
  try {
    await once(socket, 'connect')
    return true
  } catch {
    return false
  } finally {
    socket.destroy()
  }
}

describe.each([
  ['NATS', useNats],
  ['Redis', useRedis],
  ['RabbitMQ', useRabbit],
] as const)('%s', (_name, use) => {
  const broker = use()

  it.each(['graceful', 'kill'] as const)(
    'a broker can be restarted on its port after a %s stop',
    async (how) => {
      expect(await answers(broker)).toBe(true)
      await broker.stop(how)
      expect(await answers(broker)).toBe(false)
      await broker.start()
      expect(await answers(broker)).toBe(true)
    },
  )

  it('a broker can be restarted while it is frozen', async () => {
    await broker.freeze()
    await broker.restart('graceful')
    expect(await answers(broker)).toBe(true)
  })
})
