import { beforeEach, describe, expect, it } from 'vitest'
import { useCommandLine, type HaltedCommand, useHaltedCommands } from '../../../test/support/command-line.ts'
import { auditEntries } from '../../../test/support/outbox-rows.ts'
import { useProcesses } from '../../../test/support/processes.ts'
import { deliveryStates, makeDeliveries } from '../../../test/support/webhook-rows.ts'
import { forgetWebhooks, makeEndpoint } from '../../../test/support/webhook-endpoints.ts'

const processes = useProcesses()
const commandLine = useCommandLine('webhooks', 'recover')
const { db, call } = commandLine
const haltedAt = useHaltedCommands(processes, commandLine, 'leasehold.webhook_outbox')

const ARGS = ['--since', '1h', '--yes', '--reason', 'it is back']

async function statuses(): Promise<Record<string, number>> {
  const counts: Record<string, number> = {}
  for (const { delivery_status: status } of await deliveryStates(db))
    counts[status] = (counts[status] ?? 0) + 1
  return counts
}

describe('ten thousand recovered, and ended half way', () => {
  beforeEach(async () => {
    await forgetWebhooks(db)
    await makeDeliveries(db, await makeEndpoint(db), 10_000, { status: 'failed' })
  })

  async function halted(id: number): Promise<HaltedCommand> {
    return haltedAt(['webhooks', 'recover', ...ARGS], id)
  }

  it('killed: what was committed stays, with its audit; run again, none is left out or requeued twice', async () => {
    const { process, letGoOfKilled } = await halted(5_500)
    expect(await process.kill('SIGKILL')).toEqual({ code: null, signal: 'SIGKILL' })
    await letGoOfKilled()
    expect(await statuses()).toEqual({ pending: 5_000, failed: 5_000 })
    expect((await auditEntries(db)).at(-1)?.details).toMatchObject({ requeued: 5_000, matched: 10_000 })
    const again = await call(ARGS)
    expect(again.stdout).toMatch(/^Requeued 5,000 deliveries\./)
    expect(await statuses()).toEqual({ pending: 10_000 })
  })

  it('told to stop: it finishes its batch and says how to go on', async () => {
    const { process, letGo } = await halted(3_500)
    const exit = process.kill('SIGINT')
    // The batch that waits for the lock is the one that is finished.
    await letGo()
    expect(await exit).toEqual({ code: 1, signal: null })
    expect(process.output().stdout).toMatch(
      /^Stopped\. 4,000 of 10,000 deliveries were changed, the rest is as it was\. The same command once more/,
    )
    expect((await call(ARGS)).stdout).toMatch(/^Requeued 6,000 deliveries\./)
    expect(await statuses()).toEqual({ pending: 10_000 })
  })

  it('the database ends its session: the error says what was done, and how to go on', async () => {
    const { process, letGo, endSession } = await halted(1_500)
    await endSession()
    expect(await process.exited).toEqual({ code: 1, signal: null })
    await letGo()
    const { stdout, stderr } = process.output()
    expect(stdout).toBe('')
    expect(stderr).toContain('1,000 of 10,000 deliveries were changed, the rest is as it was.')
    expect(stderr).toContain('DATABASE_UNAVAILABLE')
    expect(await statuses()).toEqual({ pending: 1_000, failed: 9_000 })
  })
})
