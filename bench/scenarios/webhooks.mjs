// Webhooks to a local receiver that takes 50 ms: the dispatcher against a bare loop of signed requests.
import { pathToFileURL } from 'node:url'
import { join } from 'node:path'
import { measureWebhooks, startReceiver, webhookSides } from '../measure-webhooks.mjs'
import { measureInTurns, median, present, ratioCheck } from '../rounds.mjs'

const RECEIVER_MS = 50
const CONCURRENCY = 64
const ENDPOINTS = 4
const LIMIT = 0.85

export const scenario = {
  name: 'webhooks',
  title: 'Webhooks to a local receiver that takes 50 ms',
  reach: '≥ 0.85 of a bare loop of signed requests',

  async run({ server, build, sized, rounds, print, signal, timeoutMs }) {
    const rows = sized({ quick: 2_000, short: 15_000, full: 40_000 })
    const remarks = [
      `${rows} deliveries to ${ENDPOINTS} endpoints, ${CONCURRENCY} requests at a time, to a receiver in a process of its own that answers after ${RECEIVER_MS} ms.`,
      'The bare loop sends requests that are signed the same way, with the same undici and the same concurrency. It stores nothing, retries nothing, and has no lease, circuit breaker or address check. The clock of the dispatcher includes the start of its runtime.',
    ]
    const receiver = await startReceiver(RECEIVER_MS)
    try {
      const dist = pathToFileURL(`${join(build, 'dist')}/`).href
      const sides = webhookSides(
        { dist, receiver: receiver.url, endpoints: ENDPOINTS, concurrency: CONCURRENCY },
        [{ label: 'leasehold' }],
      )
      const readings = await measureInTurns(
        { sides, rounds, print, signal, remarks, title: 'webhooks', nameOf: ({ label }) => label },
        async (side) => {
          const reading = await measureWebhooks(server, side, { rows, timeoutMs })
          return { ...reading, perSecond: (rows / reading.ms) * 1_000 }
        },
      )
      const [bare, own] = sides
      const of = (side) => readings.get(side)?.map(({ perSecond }) => perSecond)
      return {
        series: [...readings].map(([side, values]) => ({
          side: side.label,
          variant: `${RECEIVER_MS} ms`,
          metric: 'deliveries per second',
          unit: '/s',
          better: 'higher',
          values: of(side),
          details: {
            nodeMicroseconds: median(values.map((one) => (one.nodeCpuMs * 1_000) / rows)),
            serverMicroseconds: median(values.map((one) => (one.serverCpuMs * 1_000) / rows)),
          },
        })),
        checks: present([
          ratioCheck({
            text: '≥ 0.85 of a bare loop of signed requests',
            of: of(own),
            to: of(bare),
            comparison: '>=',
            limit: LIMIT,
            against: bare.label,
          }),
        ]),
        remarks,
      }
    } finally {
      receiver.stop()
    }
  },
}
