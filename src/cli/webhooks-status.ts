/** The webhooks in `leasehold status`: how much is in each state, how long it waits, and which endpoints get nothing. */
import type { Count } from '../admin/counting.ts'
import { isMissingTable } from '../postgres/failures.ts'
import type { Database } from '../postgres/index.ts'
import {
  countDeliveries,
  type DeliveryCounts,
  oldestPendingDelivery,
  type OldestPendingDelivery,
} from '../webhooks/admin/counts.ts'
import {
  type EndpointSummaries,
  type EndpointSummary,
  MOST_PENDING,
  summariseEndpoints,
} from '../webhooks/admin/endpoint-summary.ts'
import { columns, duration, grouped, relative } from './text-columns.ts'

export interface WebhooksStatus {
  readonly counts: DeliveryCounts
  readonly oldestPending: OldestPendingDelivery | undefined
  readonly endpoints: EndpointSummaries
}

type Read = WebhooksStatus | { readonly problem: string }

const LOOK_TIMEOUT_MS = 5_000
const SHOWN_ENDPOINTS = 10

/** What is known; or why it is not. */
export async function readWebhooks(db: Database, schema: string): Promise<Read> {
  const options = { schema, timeoutMs: LOOK_TIMEOUT_MS }
  try {
    return {
      counts: await countDeliveries(db, options),
      oldestPending: await oldestPendingDelivery(db, options),
      endpoints: await summariseEndpoints(db, { ...options, limit: SHOWN_ENDPOINTS }),
    }
  } catch (error) {
    if (isMissingTable(error))
      return { problem: `the schema ${schema} has no webhooks yet: run \`leasehold migrate\`` }
    return { problem: error instanceof Error ? error.message : String(error) }
  }
}

export function webhooksText(read: Read, schema: string, now: Date, width: number | undefined): string {
  const name = `${schema}.webhook_outbox`
  if ('problem' in read) return `${name}: ${read.problem}`
  const { counts, endpoints } = read
  const oldest = read.oldestPending === undefined ? '-' : duration(read.oldestPending.waitingMs)
  const line = [
    name,
    ...[counts.pending, counts.inFlight, counts.delivered, counts.failed].map(shown),
    oldest,
  ]
  const table = columns([['WEBHOOKS', 'PENDING', 'LEASED', 'DELIVERED', 'FAILED', 'OLDEST PENDING'], line])
  return endpoints.endpoints.length === 0 ? table : `${table}\n\n${endpointsText(endpoints, now, width)}`
}

export function webhooksJson(read: Read): unknown {
  if ('problem' in read) return read
  return {
    counts: read.counts,
    oldestPending: read.oldestPending ?? null,
    endpoints: read.endpoints.endpoints,
    moreEndpoints: read.endpoints.more,
  }
}

function endpointsText({ endpoints, more }: EndpointSummaries, now: Date, width: number | undefined): string {
  const lines = endpoints.map((endpoint) => [
    endpoint.url ?? endpoint.id,
    endpoint.state,
    endpoint.pending >= MOST_PENDING ? `${grouped(MOST_PENDING)} or more` : grouped(endpoint.pending),
    grouped(endpoint.failed),
    note(endpoint, now),
  ])
  const table = columns([['ENDPOINT', 'STATE', 'PENDING', 'FAILED', 'NOTE'], ...lines], width)
  const notes = [
    ...(more ? ['There are more.'] : []),
    ...(endpoints.some(({ failed }) => failed > 0)
      ? ["What has failed can be delivered once more: `leasehold webhooks recover --since … --reason '…'`."]
      : []),
  ]
  return [table, ...notes].join('\n')
}

function note({ state, reason, since, openUntil }: EndpointSummary, now: Date): string {
  const long = since === null ? '' : ` for ${duration(now.getTime() - since.getTime())}`
  const notes: Readonly<Record<EndpointSummary['state'], string>> = {
    deleted: 'its deliveries are given up by the next upkeep of a dispatcher',
    disabled: `disabled${long}${reason === null ? '' : `: ${reason}`}`,
    open: `failing${long}; next probe ${openUntil === null ? 'soon' : relative(openUntil, now)}`,
    probing: `failing${long}; the next delivery is a probe`,
    ok: '',
  }
  return notes[state]
}

function shown({ count, exact }: Count): string {
  return exact ? grouped(count) : `about ${grouped(count)}`
}
