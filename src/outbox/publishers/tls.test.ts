import { expect, it, onTestFinished, vi } from 'vitest'

import { outboxEvent, publishContext } from '../../../test/support/brokers/events.ts'
import { startTlsReceiver, testCertificate } from '../../../test/support/hostile-receiver.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import type { Publisher } from '../publisher.ts'
import { httpPublisher } from './http.ts'
import { natsPublisher } from './nats.ts'
import { rabbitPublisher } from './rabbitmq.ts'
import { redisPublisher } from './redis.ts'

useQuietProcess()

const PUBLISHERS: Readonly<Record<string, (server: string) => Publisher>> = {
  http: (server) => httpPublisher({ url: `https://${server}/` }),
  redis: (server) => redisPublisher({ url: `rediss://${server}` }),
  rabbitmq: (server) => rabbitPublisher({ url: `amqps://${server}`, exchange: 'events' }),
  nats: (server) => natsPublisher({ connect: { servers: server, tls: { handshakeFirst: true } } }),
}

it.each(Object.keys(PUBLISHERS))(
  'a certificate that is not trusted is refused, also with NODE_TLS_REJECT_UNAUTHORIZED=0: %s',
  async (name) => {
    vi.stubEnv('NODE_TLS_REJECT_UNAUTHORIZED', '0')
    vi.spyOn(process, 'emitWarning').mockImplementation(() => {})
    onTestFinished(() => {
      vi.unstubAllEnvs()
      vi.restoreAllMocks()
    })
    let secured = 0
    const receiver = await startTlsReceiver(testCertificate('right'), (socket) => {
      secured += 1
      socket.destroy()
    })
    const publisher = PUBLISHERS[name]?.(`127.0.0.1:${receiver.port}`)
    onTestFinished(async () => publisher?.close?.())
    const outcome = await publisher
      ?.publish([outboxEvent()], publishContext())
      .catch((error: unknown) => error)
    // A publisher that cannot connect throws; HTTP tries the event again.
    expect(outcome).toMatchObject(name === 'http' ? [{ name: 'retry' }] : { name: 'SaturatedError' })
    expect(secured).toBe(0)
  },
)
