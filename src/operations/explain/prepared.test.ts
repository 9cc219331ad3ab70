/** Rows and tables that a prepared transaction has locked: it has no session, and nobody can tell whether it was to be committed. */
import { beforeAll, expect, it } from 'vitest'
import { useExaminedServer } from '../../../test/support/examined-server.ts'
import { WORK_DDL, WORK_TABLE } from '../../../test/support/work-table.ts'
import { leaseTable } from '../../lease/index.ts'
import { explainRow } from './explain.ts'
import type { Explanation, Reason } from './reasons.ts'

const server = useExaminedServer()
const JOBS = { table: leaseTable(WORK_TABLE), workers: ['jobs'] }

beforeAll(async () => {
  await server.asAdmin(
    WORK_DDL,
    'insert into public.jobs (kind) values (default)',
    'grant all on public.jobs to public',
  )
})

async function explain(): Promise<Explanation> {
  return explainRow(server.db(), JOBS, '1', { oldSnapshotMs: 0 })
}

async function whilePrepared(statement: string): Promise<Explanation> {
  await server.asAdmin('begin', statement, `prepare transaction 'order ''7'''`)
  try {
    return await explain()
  } finally {
    await server.asAdmin(`rollback prepared 'order ''7'''`)
  }
}

it.each(['share mode', 'access exclusive mode'])('tableLocked: the whole table, in %s', async (mode) => {
  const { reasons } = await whilePrepared(`lock table public.jobs in ${mode}`)
  const found = reasons.find(({ code }) => code === 'tableLocked')
  expect(found).toMatchObject({ by: "order '7'", since: expect.any(Date) as Date })
  expect(found?.text).toMatch(/^The prepared transaction "order '7'" has locked the whole table \(\w+\) /)
  expectAdvice(found)
})

it('rowLocked: the row, and oldSnapshot', async () => {
  const { reasons } = await whilePrepared('select from public.jobs for update')
  expect(reasons.map(({ code }) => code)).toEqual(['rowLocked', 'noWorker', 'oldSnapshot'])
  expectAdvice(reasons[0])
  expectAdvice(reasons[2])
})

/** Its transaction manager decides; a command that rolls it back might lose what was promised. */
function expectAdvice(found: Reason | undefined): void {
  expect(found?.command).toBeUndefined()
  expect(found?.text).toContain(
    ": ask its transaction manager whether it was to be committed, and run COMMIT PREPARED or ROLLBACK PREPARED 'order ''7'''.",
  )
}
