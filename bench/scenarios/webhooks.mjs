// Webhooks to a local receiver that takes 50 ms: the dispatcher against a bare loop of signed requests.
import { pathToFileURL } from 'node:url'
import { join } from 'node:path'
import { measureWebhooks, startReceiver, webhookSides } from '../measure-webhooks.mjs'
import { measureInTurns, ratioCheck, seriesOf } from '../rounds.mjs'

const RECEIVER_MS = 50
const CONCURRENCY = 64
const ENDPOINTS = 4

const METRICS = [
  { figure: 'perSecond', metric: 'deliveries per second', unit: '/s', better: 'higher' },
  { figure: 'nodeMicroseconds', metric: 'Node CPU per delivery', unit: 'µs', better: 'lower' },
  { figure: 'serverMicroseconds', metric: 'server CPU per delivery', unit: 'µs', better: 'lower' },
]

export const scenario = {
  name: 'webhooks',
  title: 'Webhooks to a local receiver that takes 50 ms',

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
      ).map((side) => ({ ...side, name: side.label }))
      const readings = await measureInTurns(
        { sides, rounds, print, signal, remarks, title: 'webhooks' },
        async (side) => {
          const reading = await measureWebhooks(server, side, { rows, timeoutMs })
          return {
            perSecond: (rows / reading.ms) * 1_000,
            nodeMicroseconds: (reading.nodeCpuMs * 1_000) / rows,
            serverMicroseconds: (reading.serverCpuMs * 1_000) / rows,
          }
        },
      )
      const [bare, own] = sides
      const of = (side) => readings.get(side)?.map(({ perSecond }) => perSecond)
      return {
        series: seriesOf(readings, METRICS, `${RECEIVER_MS} ms`),
        checks: ratioCheck('webhooks', [{ of: of(own), to: of(bare), against: bare.name }]),
        remarks,
      }
    } finally {
      receiver.stop()
    }
  },
}
