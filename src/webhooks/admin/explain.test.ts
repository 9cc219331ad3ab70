import { tmpdir } from 'node:os'
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { callLeasehold } from '../../../test/support/command-line.ts'
import { useDatabase } from '../../../test/support/database.ts'
import { useLoginRoles } from '../../../test/support/login-roles.ts'
import { hold, useReceivers } from '../../../test/support/receiver.ts'
import { sendAll, useDispatchers } from '../../../test/support/running-dispatcher.ts'
import { settled } from '../../../test/support/running-worker.ts'
import { codesOf, expectAllStaged, remembering, whenGiven } from '../../../test/support/staged-reasons.ts'
import { addEndpoint, forgetWebhooks, SECRET_KEY } from '../../../test/support/webhook-endpoints.ts'
import type { Explanation, Reason } from '../../operations/explain/reasons.ts'
import { duration } from '../../figures.ts'
import { openDatabase } from '../../postgres/database.ts'
import { endpoints } from '../endpoints/endpoints.ts'
import { type ExplainDeliveryOptions, explainDelivery } from './explain.ts'

const database = useDatabase()
const { url } = database
const roles = useLoginRoles(database)
const db = openDatabase({ url })
const dispatchers = useDispatchers(url)
const receivers = useReceivers()
const managed = endpoints(db, { secretKey: SECRET_KEY })
const BY = { principal: 'alice', reason: 'maintenance' }
const remembered = remembering(explainDelivery)
const BOUND = { timeout: 120_000, interval: 20 }

beforeEach(async () => {
  await forgetWebhooks(db)
  await db.query({ text: 'truncate leasehold.workers' })
})
afterAll(async () => db.close())

async function explain(id: string, options: ExplainDeliveryOptions = {}): Promise<Explanation> {
  return remembered(db, id, { secretKey: SECRET_KEY, ...options })
}

async function codes(id: string, options?: ExplainDeliveryOptions): Promise<string[]> {
  return codesOf(await explain(id, options))
}

async function reasonOf(id: string, code: Reason['code'], options?: ExplainDeliveryOptions): Promise<Reason> {
  return whenGiven(async () => explain(id, options), code)
}

/** Runs a command that an explanation names, with a reason where one is asked for. */
async function runCommand(command = ''): Promise<void> {
  const [, ...args] = command.replace("'…'", 'tested').split(' ')
  const { code, stderr } = await callLeasehold(args, { databaseUrl: url, workingDirectory: tmpdir() })
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' })
}

it('finished and dead: delivered or failed, since when', async () => {
  const receiver = await receivers()
  await addEndpoint(db, receiver.url)
  await sendAll(db, null)
  const { events } = await dispatchers()
  await settled(events, 1)
  expect((await reasonOf('1', 'finished')).text).toMatch(/^It was delivered at .*Z \(\d s ago\)\.$/)
  receiver.answer(() => 410)
  const over = settled(events, 1)
  await sendAll(db, null)
  await over
  const { text, command } = await reasonOf('2', 'dead')
  expect(text).toMatch(/^It failed at .*Z \(\d s ago\), after 1 failed attempt: .*410.*\.$/)
  expect(command).toBe("leasehold webhooks replay 2 --reason '…'")
})

it('endpointDisabled: since when and why, and enabling it ends that', async () => {
  const { id } = await addEndpoint(db, 'https://receiver.example/hook')
  await sendAll(db, null)
  await managed.disable(id, BY)
  const { text, by, command } = await reasonOf('1', 'endpointDisabled')
  expect(text).toMatch(
    new RegExp(`^Its endpoint ${id} has been disabled since .*Z \\(\\d s ago\\): maintenance\\.$`),
  )
  expect({ by, command }).toEqual({
    by: id,
    command: `leasehold webhooks endpoints enable ${id} --reason '…'`,
  })
  await managed.enable(id, BY)
  expect(await codes('1')).toEqual(['noWorker'])
})

it('endpointDeleted: a dispatcher will give the delivery up, and does', async () => {
  const receiver = await receivers(() => 500)
  const { id } = await addEndpoint(db, receiver.url)
  await sendAll(db, null)
  const first = await dispatchers({ schedule: [600_000] })
  await settled(first.events, 1)
  await first.runtime.stop()
  await managed.delete(id, BY)
  expect(await reasonOf('1', 'endpointDeleted')).toEqual({
    code: 'endpointDeleted',
    text: `Its endpoint ${id} was deleted, and a dispatcher will give it up.`,
    by: id,
  })
  await dispatchers({ retention: {} })
  expect((await reasonOf('1', 'dead')).text).toMatch(
    /^It failed at .*Z \(\d s ago\), after 1 failed attempt: /,
  )
})

it('circuitOpen: until when, after how many failures, and the command closes it', async () => {
  const receiver = await receivers(() => 500)
  const { id } = await addEndpoint(db, receiver.url)
  await sendAll(db, null, null)
  const { events } = await dispatchers({
    circuitBreaker: { failureThreshold: 2, openMs: 600_000 },
    schedule: [1_200_000],
  })
  await settled(events, 2)
  const { text, until, command } = await reasonOf('1', 'circuitOpen')
  expect(text).toMatch(
    new RegExp(
      `^Nothing is sent to its endpoint ${id} until .*Z \\(in 10 min\\), because 2 attempts in a row failed, and its circuit opened at .*Z \\(\\d s ago\\)\\.$`,
    ),
  )
  expect(until).toBeInstanceOf(Date)
  expect(command).toBe(`leasehold webhooks endpoints enable ${id} --reason '…'`)
  expect(await codes('1')).toEqual(['circuitOpen', 'retryWait'])
  await runCommand(command)
  expect(await codes('1')).toEqual(['retryWait'])
})

it('circuitProbing: one delivery is a probe, the others wait for it, and the command closes the circuit', async () => {
  const receiver = await receivers(() => 500)
  const { id } = await addEndpoint(db, receiver.url)
  await sendAll(db, null, null)
  const { events } = await dispatchers(
    { circuitBreaker: { failureThreshold: 2, openMs: 1_500 }, schedule: [1_200_000] },
    { presenceMs: 50 },
  )
  await settled(events, 2)
  await reasonOf('1', 'circuitOpen')
  const held = hold(receiver)
  await sendAll(db, null, null)
  await receiver.reached(3)
  const waiting = (await codes('3')).includes('leased') ? '4' : '3'
  const { text, by, command } = await reasonOf(waiting, 'circuitProbing')
  expect(text).toMatch(
    new RegExp(
      `^Its endpoint ${id} is being probed with one delivery at a time, because 2 attempts in a row failed, and its circuit opened at .*Z \\(\\d+ s ago\\)\\.$`,
    ),
  )
  expect(by).toBe(id)
  expect(receiver.received).toHaveLength(3)
  await runCommand(command)
  // The probe has not been answered: only the closed circuit lets the other one through.
  await receiver.reached(4)
  held.letGo()
  await settled(events, 2)
})

it('concurrencyLimit: how many deliveries are in flight', async () => {
  const receiver = await receivers()
  const held = hold(receiver)
  const { id } = await addEndpoint(db, receiver.url, { concurrency: 2 })
  await sendAll(db, null, null, null)
  await dispatchers({}, { presenceMs: 50 })
  await receiver.reached(2)
  const { text, command } = await reasonOf('3', 'concurrencyLimit')
  expect(text).toBe(`2 deliveries to its endpoint ${id} are in flight, and its concurrency is 2.`)
  expect(command).toBe(`leasehold webhooks endpoints update ${id} --concurrency 4`)
  expect(await codes('3')).toEqual(['concurrencyLimit'])
  expect(await codes('1')).toEqual(['leased'])
  held.letGo()
})

it('rateLimit: how many were due earlier, about how long they take, and the command ends that', async () => {
  const receiver = await receivers()
  const { id } = await addEndpoint(db, receiver.url, { rate_per_second: 1 })
  await sendAll(db, ...Array.from({ length: 200 }, () => null))
  const { events } = await dispatchers({}, { presenceMs: 50 })
  await receiver.reached(1)
  const { text, by, command } = await reasonOf('200', 'rateLimit')
  const [, earlier = '', seconds = ''] =
    new RegExp(
      `^Its endpoint ${id} gets 1 per second at most, and (\\d+) deliveries that were due earlier take about (\\d+ (?:s|min))\\.$`,
    ).exec(text) ?? []
  expect(Number(earlier)).toBeGreaterThan(0)
  expect(Number(earlier)).toBeLessThan(199)
  expect(seconds).toBe(duration(Number(earlier) * 1_000))
  expect({ by, command }).toEqual({ by: id, command: `leasehold webhooks endpoints update ${id} --no-rate` })
  const rest = settled(events, ['200'])
  await runCommand(command)
  await rest
  expect(await codes('200')).toEqual(['finished'])
})

it('waitsForRow: a delivery of its key is in flight; another endpoint is not affected', async () => {
  const receiver = await receivers()
  const held = hold(receiver)
  await addEndpoint(db, receiver.url, { ordered: true })
  await sendAll(db, 'k', 'k')
  await dispatchers({}, { presenceMs: 50 })
  await receiver.reached(1)
  const { by, command } = await reasonOf('2', 'waitsForRow')
  expect({ by, command }).toEqual({ by: '1', command: 'leasehold webhooks explain 1' })
  held.letGo()
})

describe('the key of the secrets', () => {
  it('noSecretKey: no dispatcher runs, and without a key none would be started', async () => {
    await addEndpoint(db, 'https://receiver.example/hook')
    await sendAll(db, null)
    expect(await codes('1', { secretKey: '' })).toEqual(['noSecretKey', 'noWorker'])
    await db.query({
      text: `update leasehold.webhook_outbox set next_attempt_at = now() + interval '1 hour'`,
    })
    await dispatchers({}, { presenceMs: 50 })
    await expect.poll(async () => codes('1', { secretKey: '' }), BOUND).toEqual(['scheduled'])
  })

  it('secretUnreadable: the key of the dispatcher is another one, which is not shown; with both keys it is delivered', async () => {
    const receiver = await receivers()
    const { id } = await addEndpoint(db, receiver.url)
    await sendAll(db, null)
    const other = Buffer.alloc(32, 8).toString('base64')
    const { runtime } = await dispatchers({ secretKey: other }, { presenceMs: 50 })
    await expect.poll(async () => codes('1', { secretKey: other }), BOUND).toEqual(['secretUnreadable'])
    const { text, by, command } = await reasonOf('1', 'secretUnreadable', { secretKey: other })
    expect(text).toContain(`The secret or the headers of its endpoint ${id} cannot be decrypted`)
    expect(text).not.toContain(other)
    expect(text).toContain(
      'set LEASEHOLD_SECRET_KEY here as the dispatchers have it, and if they lack its key as well, add that after a comma.',
    )
    // A new secret would not be known to the receiver.
    expect({ by, command }).toEqual({ by: id, command: undefined })
    expect(receiver.received).toHaveLength(0)
    await runtime.stop()
    const both = `${other},${SECRET_KEY}`
    expect(await codes('1', { secretKey: both })).toEqual(['noWorker'])
    await dispatchers({ secretKey: both })
    await receiver.reached(1)
  })
})

it('the role of a reader is enough, except for the secret of the endpoint, which it may not see', async () => {
  await addEndpoint(db, 'https://receiver.example/hook', { concurrency: 1 })
  await sendAll(db, null)
  const reader = openDatabase({ url: roles.reader.url })
  const other = Buffer.alloc(32, 8).toString('base64')
  try {
    const { reasons } = await explainDelivery(reader, '1', { secretKey: other })
    expect(reasons.map(({ code }) => code)).toEqual(['noWorker'])
    await expect(explainDelivery(reader, '1', { secretKey: other, tryClaim: true })).rejects.toMatchObject({
      code: 'PERMISSION_DENIED',
    })
  } finally {
    await reader.close()
  }
})

it('DELIVERY_NOT_FOUND: there is none with this id', async () => {
  await expect(explain('4711')).rejects.toMatchObject({ code: 'DELIVERY_NOT_FOUND' })
})

expectAllStaged('webhooks')
