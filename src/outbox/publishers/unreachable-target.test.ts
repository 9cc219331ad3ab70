import { createServer } from 'node:net'
import { expect, it, onTestFinished } from 'vitest'

import { outboxEvent, publishContext } from '../../../test/support/brokers/events.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { SaturatedError } from '../../worker/completion/outcome.ts'
import type { Publisher } from '../publisher.ts'
import { httpPublisher } from './http.ts'
import { natsPublisher } from './nats.ts'
import { rabbitPublisher } from './rabbitmq.ts'
import { redisPublisher } from './redis.ts'

useQuietProcess()

const publishers: Readonly<Record<string, (server: string) => Publisher>> = {
  nats: (server) => natsPublisher({ connect: { servers: `nats://ada:s3cret@${server}` } }),
  rabbitmq: (server) => rabbitPublisher({ url: `amqp://ada:s3cret@${server}`, exchange: 'events' }),
  redis: (server) => redisPublisher({ url: `redis://ada:s3cret@${server}`, stream: 'events' }),
  http: (server) =>
    httpPublisher({ url: `http://${server}/hooks/s3cret`, probeUrl: `http://${server}/s3cret` }),
}

/** An address on which nobody listens: it was free a moment ago. */
async function unusedAddress(): Promise<string> {
  const server = createServer()
  await new Promise<void>((resolve) => void server.listen(0, '127.0.0.1', resolve))
  const address = server.address()
  await new Promise((resolve) => void server.close(resolve))
  return `127.0.0.1:${typeof address === 'object' ? address?.port : ''}`
}

async function failure(work: Promise<unknown> | undefined): Promise<unknown> {
  return work?.then(
    () => undefined,
    (error: unknown) => error,
  )
}

it.each(Object.entries(publishers))(
  'the %s publisher names the address of a target that it cannot reach, and no secret of its URL',
  async (name, open) => {
    const server = await unusedAddress()
    const publisher = open(server)
    onTestFinished(async () => publisher.close?.())
    const errors = [
      await failure(publisher.publish([outboxEvent()], publishContext())),
      await failure(publisher.probe?.(AbortSignal.timeout(5_000))),
    ]
    for (const error of errors) {
      expect(error).toBeInstanceOf(SaturatedError)
      expect(String(error)).toMatch(new RegExp(`The ${name} publisher for (?:\\w+://)?${server} cannot `))
      expect(String(error)).not.toContain('s3cret')
    }
  },
)
