/** Which reading of the overview a client of live updates gets, with readings that the test controls. */
import { expect, it, vi } from 'vitest'
import type { Database } from '../../postgres/database.ts'
import { Live } from './live.ts'
import { type Overview, readOverview } from './overview.ts'

vi.mock('./overview.ts')

function newLive(errors: unknown[] = []): Live {
  return new Live({
    // The readings are mocked.
    db: {} as Database,
    schema: 'leasehold',
    prefix: async () => Promise.resolve('leasehold'),
    statementTimeoutMs: 1_000,
    onError: (error) => void errors.push(error),
  })
}

function listen(live: Live): ReadableStreamDefaultReader<string> {
  const { body } = live.respond(new Request('http://localhost/live'), 'test', async () =>
    Promise.resolve(true),
  )
  if (body === null) throw new Error('there is a body')
  return body.pipeThrough(new TextDecoderStream()).getReader()
}

async function untilEvent(reader: ReadableStreamDefaultReader<string>, name: string): Promise<void> {
  for (;;) {
    const { done, value = '' } = await reader.read()
    if (value.includes(`event: ${name}`)) return
    if (done) throw new Error('the stream has ended')
  }
}

/** Nothing has changed between two readings. */
const SAME = { outbox: 'as before' } as unknown as Overview

it('what was read when nobody listened any more does not count as sent', async () => {
  const live = newLive()
  let finish = (): void => undefined
  const reading = new Promise<Overview>((resolve) => {
    finish = () => resolve(SAME)
  })
  vi.mocked(readOverview).mockReturnValueOnce(reading).mockResolvedValue(SAME)
  const first = listen(live)
  await vi.waitFor(() => expect(readOverview).toHaveBeenCalledOnce())
  await first.cancel()
  finish()
  await new Promise(setImmediate)
  const second = listen(live)
  await untilEvent(second, 'overview')
  live.stop()
})

it('a point of the history is sent to those who listen, and changes nothing of what counts as sent', async () => {
  const live = newLive()
  vi.mocked(readOverview).mockResolvedValue(SAME)
  const point = { everyMs: 5_000, times: [new Date(0)], tables: [] }
  live.sendPoint(point)
  const client = listen(live)
  await untilEvent(client, 'overview')
  live.sendPoint(point)
  const { value } = await client.read()
  expect(value).toBe(`event: history\ndata: ${JSON.stringify(point)}\n\n`)
  live.stop()
})

it('an outage is reported once, and clients are told of it', async () => {
  vi.useFakeTimers()
  const errors: unknown[] = []
  const live = newLive(errors)
  vi.mocked(readOverview).mockRejectedValue(new Error('away'))
  const client = listen(live)
  await untilEvent(client, 'unavailable')
  await vi.advanceTimersByTimeAsync(3_000)
  await untilEvent(client, 'unavailable')
  expect(errors).toHaveLength(1)
  vi.mocked(readOverview).mockResolvedValue(SAME)
  await vi.advanceTimersByTimeAsync(1_000)
  await untilEvent(client, 'overview')
  live.stop()
  vi.useRealTimers()
})
