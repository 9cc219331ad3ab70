/** A real Prometheus scrapes `/metrics`, evaluates the alert rules and answers the expressions of the dashboard. */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { once } from 'node:events'
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, expect, it, vi } from 'vitest'
import { stringify } from 'yaml'
import { createMetrics, CONTENT_TYPE } from '../src/observe/prometheus.ts'
import { Events } from '../src/worker/events.ts'
import { useBroker } from './support/brokers/broker.ts'
import { emitOneOfEach, oneOfEachGauge } from './support/sample-events.ts'

const POLL = { timeout: 120_000, interval: 100 }

const events = new Events()
const metrics = createMetrics(events, { gauges: oneOfEachGauge() })
const target = createServer((_, response) => {
  // Counters grow between two scrapes, so that there is a rate.
  emitOneOfEach(events)
  events.emit('workerStarted', { worker: 'w1', roles: [] })
  void metrics.render().then((text) => response.setHeader('content-type', CONTENT_TYPE).end(text))
})
beforeAll(async () => {
  target.listen(0, '127.0.0.1')
  await once(target, 'listening')
})
afterAll(() => {
  target.closeAllConnections()
  target.close()
})

const prometheus = useBroker({
  program: 'prometheus',
  install: 'apt-get install prometheus',
  url: (port) => `http://127.0.0.1:${port}`,
  async call(program, directory, port) {
    const config = join(directory, 'prometheus.yml')
    // Listening since the hook before this one.
    const { port: targetPort } = target.address() as AddressInfo
    await writeFile(
      config,
      stringify({
        global: { scrape_interval: '1s', evaluation_interval: '1s' },
        rule_files: [fileURLToPath(new URL('../docs/monitoring/alerts.yml', import.meta.url))],
        scrape_configs: [
          { job_name: 'leasehold', static_configs: [{ targets: [`127.0.0.1:${targetPort}`] }] },
        ],
      }),
    )
    const storage = join(directory, 'data')
    return {
      program,
      args: [
        `--config.file=${config}`,
        `--storage.tsdb.path=${storage}`,
        `--web.listen-address=127.0.0.1:${port}`,
      ],
      ready: /Server is ready to receive web requests/,
    }
  },
})

async function ask<Data>(path: string, query: Readonly<Record<string, string>> = {}): Promise<Data> {
  const response = await fetch(`${prometheus.url}/api/v1/${path}?${new URLSearchParams(query).toString()}`)
  const answer = (await response.json()) as { status: string; data: Data; error?: string }
  if (answer.status !== 'success') throw new Error(`${path} ${JSON.stringify(query)}: ${answer.error}`)
  return answer.data
}

interface EvaluatedRule {
  readonly name: string
  readonly health: string
  readonly state: string
  readonly lastError?: string
}

it('Prometheus scrapes the metrics without an error and evaluates every alert rule', async () => {
  const evaluated = async (): Promise<readonly EvaluatedRule[]> => {
    const { groups } = await ask<{ groups: readonly { rules: readonly EvaluatedRule[] }[] }>('rules')
    return groups.flatMap(({ rules }) => rules)
  }
  await vi.waitFor(async () => {
    const { activeTargets } = await ask<{ activeTargets: readonly { health: string; lastError: string }[] }>(
      'targets',
    )
    expect(activeTargets).toMatchObject([{ health: 'up', lastError: '' }])
    const rules = await evaluated()
    expect(rules.filter(({ health }) => health !== 'ok')).toEqual([])
    // What has a `for` is pending first; what has none fires at once.
    const states = new Map(rules.map(({ name, state }) => [name, state]))
    expect(states.get('LeaseholdKeysParked')).toBe('pending')
    expect(states.get('LeaseholdWritesFencedOff')).toBe('firing')
    expect(states.get('LeaseholdOldSnapshot')).toBe('inactive')
  }, POLL)
})

it('Prometheus has an answer with samples to every expression of the dashboard', async () => {
  const dashboard = JSON.parse(
    await readFile(new URL('../docs/monitoring/grafana.json', import.meta.url), 'utf8'),
  ) as { readonly panels: readonly { readonly targets?: readonly { readonly expr: string }[] }[] }
  const expressions = dashboard.panels
    .flatMap(({ targets = [] }) => targets.map(({ expr }) => expr))
    .map((expr) => expr.replaceAll('$__rate_interval', '1m').replaceAll(/"\$(?:table|worker)"/g, '".*"'))
  expect(expressions.length).toBeGreaterThan(30)
  await vi.waitFor(async () => {
    const empty: string[] = []
    for (const query of expressions) {
      const { result } = await ask<{ result: readonly unknown[] }>('query', { query })
      if (result.length === 0) empty.push(query)
    }
    expect(empty).toEqual([])
  }, POLL)
})
