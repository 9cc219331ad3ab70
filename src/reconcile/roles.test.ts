import { expect, it } from 'vitest'
import { chooseWork } from '../cli/work.ts'
import { leaseTable } from '../lease/declaration.ts'
import type { WorkDeclaration } from '../worker/index.ts'
import { reconciler } from './reconciler.ts'

const table = leaseTable({
  table: 'app.payments',
  id: 'id',
  lease: { owner: 'owner', until: 'until' },
  claimable: "status = 'pending'",
  order: ['id'],
  onExpiry: 'claimable',
})

function declare(name?: string): WorkDeclaration {
  return reconciler({
    table,
    transitions: { pending: ['paid'], paid: [] },
    observe: async () => undefined,
    ...(name === undefined ? {} : { name }),
  })
}

it('REC-01: --only reconcile runs every reconciler, and a name runs its own', () => {
  const workers = [declare('payments'), declare('shipments')]
  const chosen = (only: string): string[] =>
    chooseWork({ workers, declared: workers }, only).workers.map(({ name }) => name)
  expect(chosen('reconcile')).toEqual(['payments', 'shipments'])
  expect(chosen('shipments')).toEqual(['shipments'])
  expect(chosen('reaper')).toEqual([])
  expect(chooseWork({ workers: [declare()], declared: [] }, 'reconcile').workers).toHaveLength(1)
})
