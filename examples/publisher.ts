// A publisher of your own. docs/guides/outbox.md shows what is between the marks; a test compares the two and runs this file.
// begin
import { dead, done, retry, SaturatedError } from 'leasehold'
import { headersOf, type Publisher } from 'leasehold/outbox'

export interface Gateway {
  send(
    messages: readonly object[],
    signal: AbortSignal,
  ): Promise<readonly { status: number; waitMs?: number }[]>
  ping(signal: AbortSignal): Promise<void>
}

export function gatewayPublisher(gateway: Gateway): Publisher {
  return {
    name: 'gateway',
    maxBatch: 50,
    async publish(events, { signal }) {
      const messages = events.map((event) => ({ headers: headersOf(event), body: event.payload }))
      const answers = await gateway.send(messages, signal)
      return answers.map(({ status, waitMs = 1_000 }) => {
        if (status === 202) return done()
        if (status === 503) return new SaturatedError(waitMs, 'the gateway has no room')
        if (status === 429) return retry({ delayMs: waitMs, error: 'too many for this receiver' })
        return dead(`the gateway refused it with ${status}`)
      })
    },
    probe: async (signal) => gateway.ping(signal),
  }
}
// end
