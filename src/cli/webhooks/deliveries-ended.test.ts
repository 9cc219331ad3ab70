import { beforeEach, describe, expect, it } from 'vitest'
import { useCommandLine, type HaltedCommand, useHaltedCommands } from '../../../test/support/command-line.ts'
import { auditEntries } from '../../../test/support/outbox-rows.ts'
import { useProcesses } from '../../../test/support/processes.ts'
import { deliveryStates, makeDeliveries } from '../../../test/support/webhook-rows.ts'
import { forgetWebhooks, makeEndpoint } from '../../../test/support/webhook-endpoints.ts'

const processes = useProcesses()
const commandLine = useCommandLine('webhooks', 'replay')
const { db, call } = commandLine
const haltedAt = useHaltedCommands(processes, commandLine, 'leasehold.webhook_outbox')

const ARGS = ['--since', '1h', '--yes', '--reason', 'it is back']

async function statuses(): Promise<Record<string, number>> {
  const counts: Record<string, number> = {}
  for (const { delivery_status: status } of await deliveryStates(db))
    counts[status] = (counts[status] ?? 0) + 1
  return counts
}

describe('a replay of ten thousand deliveries that is ended half way', () => {
  beforeEach(async () => {
    await forgetWebhooks(db)
    await makeDeliveries(db, await makeEndpoint(db), 10_000, { status: 'failed' })
  })

  async function halted(id: number): Promise<HaltedCommand> {
    return haltedAt(['webhooks', 'replay', ...ARGS], id)
  }

  it('after a kill, what was committed stays, with its audit entries; a second replay changes the rest, and none twice', async () => {
    const { process, letGoOfKilled } = await halted(5_500)
    expect(await process.kill('SIGKILL')).toEqual({ code: null, signal: 'SIGKILL' })
    await letGoOfKilled()
    expect(await statuses()).toEqual({ pending: 5_000, failed: 5_000 })
    expect((await auditEntries(db)).at(-1)?.details).toMatchObject({ changed: 5_000, matched: 10_000 })
    const second = await call(ARGS)
    expect(second.stdout).toMatch(/^Replayed 5,000 deliveries\./)
    expect(await statuses()).toEqual({ pending: 10_000 })
  })

  it('of a replay that is killed and resumed, each delivery is replayed once, also one that has failed once more in between', async () => {
    const { process, letGoOfKilled } = await halted(2_500)
    await process.kill('SIGKILL')
    await letGoOfKilled()
    await db.query({
      text: `update leasehold.webhook_outbox set delivery_status = 'failed', failed_at = now(), last_error = 'once more'
where id <= 100`,
    })
    const id = String((await auditEntries(db))[0]?.details['changeId'])
    const resumed = await call(['--resume', id])
    expect(resumed).toMatchObject({ code: 0 })
    expect(resumed.stdout).toMatch(/^Replayed 8,000 deliveries, after 2,000 before\./)
    expect(await statuses()).toEqual({ pending: 9_900, failed: 100 })
    expect(new Set((await auditEntries(db)).map(({ details }) => details['changeId']))).toEqual(new Set([id]))
  })

  it('a replay that is told to stop finishes its batch and says how to continue', async () => {
    const { process, letGo } = await halted(3_500)
    const exit = process.kill('SIGINT')
    // The batch that waits for the lock is the one that is finished.
    await letGo()
    expect(await exit).toEqual({ code: 1, signal: null })
    const { stdout } = process.output()
    expect(stdout).toMatch(/^Stopped\. 4,000 of 10,000 deliveries were replayed; the others are unchanged\./)
    const [, id = ''] = /webhooks replay --resume (\S+)\n$/.exec(stdout) ?? []
    expect((await call(['--resume', id])).stdout).toMatch(/^Replayed 6,000 deliveries, after 4,000 before\./)
    expect(await statuses()).toEqual({ pending: 10_000 })
  })

  it('the database ends its session: the error says what was done, and how to continue', async () => {
    const { process, letGo, endSession } = await halted(1_500)
    await endSession()
    expect(await process.exited).toEqual({ code: 1, signal: null })
    await letGo()
    const { stdout, stderr } = process.output()
    expect(stdout).toBe('')
    expect(stderr).toContain('1,000 of 10,000 deliveries were replayed; the others are unchanged.')
    expect(stderr).toContain('DATABASE_UNAVAILABLE')
    expect(await statuses()).toEqual({ pending: 1_000, failed: 9_000 })
  })
})
