/** Events as lines of JSON, to stdout or any other writable stream. */
import type { Writable } from 'node:stream'

import type { PublishContext, Publisher } from '../publisher.ts'
import { namesOf, refuseUnknownOptions } from '../../nearest.ts'
import { untilAborted } from '../../timeout.ts'
import { done } from '../../worker/completion/outcome.ts'
import { headersOf, type OutboxEvent } from '../event.ts'
import { BINDINGS, cloudEvent, encode, type Envelope, jsonOf, timeOf, usableEnvelope } from './envelope.ts'
import { publishTogether, reserveStdout, unavailable, wholeNumber } from './publishing.ts'

export interface StdoutPublisherOptions {
  /** Default `process.stdout`. It is never ended. */
  readonly stream?: Writable
  /** `structured`: a line is a CloudEvent. `binary`: a line has `headers` with its attributes, and `data`. */
  readonly envelope?: Envelope
  /** The most events of one call. Default 100. */
  readonly maxBatch?: number
}

const OPTION_NAMES = namesOf<StdoutPublisherOptions>({
  stream: true,
  envelope: true,
  maxBatch: true,
})

/** Publishes lines of JSON to stdout, or to another writable stream. */
export function stdoutPublisher(options: StdoutPublisherOptions = {}): Publisher {
  refuseUnknownOptions('stdoutPublisher', options, OPTION_NAMES)
  const { stream = process.stdout } = options
  if (stream === process.stdout) reserveStdout()
  const envelope = usableEnvelope('stdout', options.envelope)
  const maxBatch = wholeNumber('stdout', 'maxBatch', options.maxBatch ?? 100)
  // When the reader closes its end, the stream emits an error. Unhandled it would end the process; the write reports it too.
  const ignore = () => {}
  stream.on('error', ignore)

  async function write(text: string): Promise<void> {
    return new Promise((resolve, reject) => {
      // Waiting until the lines have been handed over keeps to the pace of the reader.
      stream.write(text, (error) => {
        if (error === null || error === undefined) resolve()
        else reject(unavailable('stdout', 'cannot write', error))
      })
    })
  }

  return {
    name: 'stdout',
    maxBatch,
    async publish(events: readonly OutboxEvent[], { signal }: PublishContext) {
      if (!stream.writable) throw unavailable('stdout', 'cannot write: the stream has ended')
      return publishTogether(
        events,
        (event) => ({ line: `${jsonOf(lineOf(event, envelope))}\n` }),
        async (lines) => {
          await untilAborted(signal, async () => write(lines.map(({ line }) => line).join('')))
          return lines.map(() => done())
        },
      )
    },
    async probe() {
      if (!stream.writable) throw unavailable('stdout', 'cannot write: the stream has ended')
    },
    async close() {
      stream.off('error', ignore)
    },
  }
}

function lineOf(event: OutboxEvent, envelope: Envelope): object {
  if (envelope === 'none') {
    const { id, eventId, type, orderingKey, payload } = event
    return { id, eventId, type, orderingKey, createdAt: timeOf(event), headers: headersOf(event), payload }
  }
  if (envelope.cloudevents === 'structured') return cloudEvent(event, envelope.source)
  const { headers, contentType } = encode(event, envelope, BINDINGS.plain)
  return { headers: { ...headers, 'content-type': contentType }, data: event.payload }
}
