/** Pages are generated from the code, or state what the code has: a default cannot change without the documentation. */
import { expect, it } from 'vitest'
import { reference } from '../scripts/reference.mjs'
import { settingsSchema } from '../src/config/schema.ts'
import { DEFAULT_RETRY } from '../src/lease/retry-policy.ts'
import { timing } from '../src/lease/timing.ts'
import { METRICS } from '../src/observe/metrics.ts'
import { createSync } from '../src/sync/index.ts'
import { MAX_HELD } from '../src/worker/heartbeat/held-rows.ts'
import { DEFAULT_CIRCUIT_BREAKER, dispatcher } from '../src/webhooks/index.ts'
import { DEFAULT_WORKER_SETTINGS } from '../src/worker/settings.ts'
import { projectFile } from './support/project-files.ts'

it('every generated part of the documentation is as `npm run reference` writes it', async () => {
  const { files, unused, unknown } = await reference()
  expect({ unused, unknown }).toEqual({ unused: [], unknown: [] })
  const changed: string[] = []
  for (const [path, text] of files) if ((await projectFile(path)) !== text) changed.push(path)
  expect(changed, 'run `npm run reference`').toEqual([])
})

const worker = DEFAULT_WORKER_SETTINGS
const { leaseMs, heartbeatMs, reaperIntervalMs, shutdownTimeoutMs } = timing()
const settings = settingsSchema.parse({})
const webhooks = dispatcher({ secretKey: Buffer.alloc(32).toString('base64') }).settings ?? {}
const sync = createSync()
sync.define('a', { plan: () => [], syncChunk: async () => {} })
const [jobs, chunks] = sync.runner()

function grouped(value: number | undefined): string {
  return (value ?? Number.NaN).toLocaleString('en-US')
}

/** A default that only the code has. */
async function inCode(file: string, pattern: RegExp): Promise<string> {
  const [, value] = pattern.exec(await projectFile(file)) ?? []
  if (value === undefined) throw new Error(`${file} has no ${String(pattern)}: where is the default now?`)
  return grouped(Number(value.replaceAll('_', '')))
}

const days = async (application: string, field: string): Promise<string> =>
  inCode(`src/${application}/admin/retention.ts`, new RegExp(`${field} = ([\\d_]+) \\* DAY_MS`))

/** [page, what it says with the value of the code]. A page that states another default needs a line here. */
const STATED: readonly (readonly [string, string])[] = [
  ['docs/reference/settings.md', `may be at most ${grouped(MAX_HELD)} rows`],
  ['docs/index.md', `the right to process a row for ${leaseMs / 1_000} s`],
  ['docs/operations/scale.md', `(\`leaseMs\`, ${leaseMs / 1_000} s by default)`],
  ['docs/guides/own-table.md', `| \`concurrency\` | ${worker.concurrency} |`],
  ['docs/guides/own-table.md', `| \`prefetch\` | ${grouped(worker.prefetch)} |`],
  ['docs/guides/own-table.md', `| \`prefetchBytes\` | ${worker.prefetchBytes / 2 ** 20} MiB |`],
  ['docs/guides/own-table.md', `| \`batch\` | ${worker.batch} |`],
  ['docs/guides/own-table.md', `| \`claimLoops\` | ${worker.claimLoops} |`],
  ['docs/guides/own-table.md', `| \`pollMs\` | ${grouped(worker.pollMs)} |`],
  ['docs/guides/own-table.md', `| \`settleDelayMs\` | ${worker.settleDelayMs} |`],
  ['docs/guides/own-table.md', `| \`maxLeases\` | ${worker.maxLeases} |`],
  ['docs/guides/own-table.md', `| \`paused\` | ${worker.paused} |`],
  ['docs/guides/own-table.md', `(\`maxLeases\`, ${(worker.maxLeases * leaseMs) / 1_000} s by default)`],
  [
    'docs/guides/outbox.md',
    `| ${DEFAULT_RETRY.firstMs / 1_000} s, ${DEFAULT_RETRY.factor}, ${DEFAULT_RETRY.longestMs / 3_600_000} h, ${DEFAULT_RETRY.jitter}, none |`,
  ],
  [
    'docs/guides/outbox.md',
    `| ${await days('outbox', 'publishedMs')} days, ${await days('outbox', 'deadMs')} days |`,
  ],
  [
    'docs/guides/outbox.md',
    `failed attempts; \`null\`: no limit | ${await inCode('src/outbox/enqueue/enqueue.ts', /DEFAULT_MAX_ATTEMPTS = (\d+)/)} |`,
  ],
  [
    'docs/guides/outbox.md',
    `(${await inCode('src/outbox/relay.ts', /DEFAULT_MAX_BATCH = (\d+)/)} for the brokers)`,
  ],
  [
    'docs/guides/webhooks.md',
    `| ${DEFAULT_CIRCUIT_BREAKER.failureThreshold}, ${DEFAULT_CIRCUIT_BREAKER.openMs / 1_000} s, ${DEFAULT_CIRCUIT_BREAKER.maxOpenMs / 60_000} min |`,
  ],
  [
    'docs/guides/webhooks.md',
    `| \`concurrency\` ${webhooks.concurrency}, \`leaseMs\` ${grouped(webhooks.leaseMs)}, no prefetch |`,
  ],
  ['docs/guides/webhooks.md', `the slots are \`settings.concurrency\`, ${webhooks.concurrency} by default`],
  ['docs/guarantees.md', `a few slots (${webhooks.concurrency} by default)`],
  [
    'docs/guides/webhooks.md',
    `| ${await days('webhooks', 'deliveredMs')}, ${await days('webhooks', 'failedMs')} and ${await inCode('src/webhooks/admin/maintenance.ts', /DEFAULT_MAX_AGE_MS = (\d+)/)} days |`,
  ],
  [
    'docs/guides/webhooks.md',
    `may use: [limits](#limits) | ${await inCode('src/webhooks/dispatcher/dispatcher.ts', /DEFAULT_TENANT_SHARE = ([\d.]+)/)} |`,
  ],
  [
    'docs/reference/errors.md',
    `delivered ones are retained for ${await days('webhooks', 'deliveredMs')} days and failed ones for ${await days('webhooks', 'failedMs')} days`,
  ],
  [
    'docs/guides/sync.md',
    `\`leaseMs\` ${grouped(jobs.settings?.leaseMs)}, \`heartbeatMs\` ${grouped(jobs.settings?.heartbeatMs)}`,
  ],
  [
    'docs/guides/sync.md',
    `\`leaseMs\` ${grouped(chunks.settings?.leaseMs)}, \`heartbeatMs\` ${grouped(chunks.settings?.heartbeatMs)}`,
  ],
  [
    'docs/guides/sync.md',
    `one runner syncs at once | ${await inCode('src/sync/runner.ts', /DEFAULT_CHUNKS_AT_ONCE = (\d+)/)} |`,
  ],
  [
    'docs/guides/sync.md',
    `planned jobs | ${await inCode('src/sync/runner.ts', /DEFAULT_CHECK_EVERY_MS = ([\d_]+)/)} |`,
  ],
  ['docs/guides/sync.md', `[retention](#retention) | ${await days('sync', 'completedMs')} days each |`],
  [
    'docs/guides/sync.md',
    `\`maxAttempts\`, ${await inCode('src/sync/definition.ts', /DEFAULT_MAX_ATTEMPTS = (\d+)/)} unless set otherwise`,
  ],
  [
    'docs/guides/reconcile.md',
    `next observation. Default ${await inCode('src/reconcile/reconciler.ts', /DEFAULT_EVERY_MS = ([\d_]+)/)} |`,
  ],
  [
    'docs/guides/reconcile.md',
    `\`pollMs\` (${await inCode('src/reconcile/reconciler.ts', /SETTINGS = \{ pollMs: ([\d_]+)/)})`,
  ],
  [
    'docs/reference/metrics.md',
    `The buckets of \`reaper_stale_duration_seconds\`: ${METRICS.reapDelay.buckets.join(', ')}. Those of \`leasehold_end_to_end_latency_seconds\`: ${METRICS.latency.buckets.join(', ')}.`,
  ],
]

it.each(STATED)('%s says “%s”, as the code does', async (page, text) => {
  expect((await projectFile(page)).includes(text)).toBe(true)
})

it('what --help says of a default is the default', async () => {
  const page = await projectFile('docs/reference/settings.md')
  expect(page).toContain(`| [\`port\`](#port) | \`--port\` | \`LEASEHOLD_PORT\` | \`${settings.port}\``)
  expect(page).toContain(`| ${heartbeatMs / leaseMs} x lease |`)
  expect(page).toContain(`| ${reaperIntervalMs}, or a third of the lease if that is shorter |`)
  expect(page).toContain(`| ${shutdownTimeoutMs / leaseMs} x lease |`)
})
