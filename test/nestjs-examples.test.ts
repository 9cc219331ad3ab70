/** The examples of NestJS and TypeORM run as processes of their own, do what their READMEs say, and stop in order. */
import { expect, it } from 'vitest'
import { useDatabase } from './support/database.ts'
import { useProcesses } from './support/processes.ts'
import { marked, snippets } from './support/project-files.ts'

const { spawnNode } = useProcesses()
const { url } = useDatabase()

it('examples/typeorm confirms an order by its event, and rolls the event back with the order', async () => {
  const example = spawnNode('examples/typeorm/main.mjs', [], { env: { DATABASE_URL: url } })
  await example.line((line) => line === 'order 1 is confirmed')
  await example.line((line) => line === 'not placed, and no event: coffee is sold out')
  expect(await example.kill(), example.output().stderr).toEqual({ code: 0, signal: null })
  expect(example.output().stdout.match(/is confirmed/g)).toHaveLength(1)
})

it('examples/nestjs, compiled with decorators and their metadata, confirms an order that was placed by HTTP', async () => {
  const env = { DATABASE_URL: url, PORT: '0', NO_COLOR: '1' }
  const example = spawnNode('examples/nestjs/main.mjs', [], { env })
  const listening = await example.line((line) => line.startsWith('listening on '))
  const base = listening.replace('listening on ', '')
  const place = async (order: object): Promise<Response> =>
    fetch(`${base}/orders`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(order),
    })
  const placed = await place({ item: 'tea' })
  expect(placed.status).toBe(201)
  const { id, item } = (await placed.json()) as { id: string; item: string }
  expect(item).toBe('tea')
  await example.line((line) => line.endsWith(`order ${id} is confirmed`))
  await expect((await fetch(`${base}/orders/${id}`)).json()).resolves.toMatchObject({
    item: 'tea',
    confirmed_at: expect.any(String),
  })
  // The transaction fails, so there is no order and no event.
  expect((await place({})).status).toBe(500)
  const health = await fetch(`${base}/health`)
  await expect(health.json()).resolves.toMatchObject({
    status: 'ok',
    info: { leasehold: { status: 'up', workers: 'running' } },
  })
  expect(await example.kill(), example.output().stderr).toEqual({ code: 0, signal: null })
  expect(example.output().stdout).toMatch(/\[Leasehold\] the worker process has stopped/)
})

it('the code in the NestJS guide is identical to that of the example', async () => {
  const files = ['orders', 'app.module', 'main', 'health.controller', 'other-ways']
  const regions = (
    await Promise.all(files.map(async (name) => marked(`examples/nestjs/src/${name}.ts`)))
  ).flat()
  expect(regions).toHaveLength(8)
  expect((await snippets('docs/guides/nestjs.md', 'ts')).toSorted()).toEqual(regions.toSorted())
})
