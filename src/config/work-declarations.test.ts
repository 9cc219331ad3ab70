import { expect, it } from 'vitest'
import { leaseTable } from '../lease/index.ts'
import { readWorkDeclarations } from './work-declarations.ts'

const declaration = {
  table: 'public.emails',
  id: 'id',
  lease: { owner: 'lease_owner', until: 'lease_until' },
  claimable: 'sent_at is null',
  order: ['id'],
  onExpiry: 'claimable',
  outcomes: { done: { set: {} } },
} as const
const table = leaseTable(declaration)
const handle = async (): Promise<void> => {}
const emails = { name: 'emails', table, handle }

function problems(value: unknown, timing = {}): readonly string[] {
  return readWorkDeclarations(value, 'leasehold.config.mjs', timing).problems
}

it('valid declarations are returned unchanged', () => {
  const workers = [
    emails,
    {
      ...emails,
      name: 'letters-2',
      settings: { concurrency: 3, leaseMs: 60_000 },
      limits: { key: () => 'x', concurrency: 1 },
      probe: { everyMs: 1_000, check: handle },
      wake: true,
      bucket: 3,
    },
  ]
  expect(readWorkDeclarations(workers, 'leasehold.config.mjs', {})).toEqual({ workers, problems: [] })
  expect(readWorkDeclarations(undefined, '', {})).toEqual({ workers: [], problems: [] })
})

it.each([
  [{ emails }, 'workers (leasehold.config.mjs) is {'],
  [['emails'], "workers[0] (leasehold.config.mjs) is 'emails', but must be an object"],
  [
    [{ ...emails, name: undefined }],
    'workers[0] (leasehold.config.mjs) has name = undefined, but it must be a name',
  ],
  [[{ ...emails, name: 'a,b' }], "workers[0] 'a,b' (leasehold.config.mjs) has name = 'a,b'"],
  [[{ ...emails, name: 'reaper' }], 'and not reaper'],
  [[{ ...emails, table: 'public.emails' }], "has table = 'public.emails', but it must be a lease table"],
  [[{ ...emails, table: declaration }], 'wrap it in leaseTable(…)'],
  [[{ ...emails, handle: 'send' }], "has handle = 'send', but it must be a function"],
  [[{ ...emails, handler: handle }], 'has the unknown field handler: did you mean handle?'],
  [
    [{ ...emails, nothingLikeIt: 1 }],
    'has the unknown field nothingLikeIt: the fields are name, role, table, handle,',
  ],
  [[{ ...emails, settings: 5 }], 'has settings = 5'],
  [[{ ...emails, settings: { concurrency: 0 } }], 'concurrency is 0'],
  [[{ ...emails, settings: { pollMS: 10 } }], 'pollMS'],
  [[{ ...emails, settings: { leaseMs: 1_000, heartbeatMs: 400 } }], 'heartbeatMs is 400'],
  [[{ ...emails, retry: { factor: 2 } }], 'has the unknown field retry'],
  [[{ ...emails, limits: { concurrency: 1 } }], 'has limits ='],
  [[{ ...emails, probe: { everyMs: 0, check: handle } }], 'has probe ='],
  [[{ ...emails, wake: 'yes' }], "has wake = 'yes', but it must be true or false"],
  [[{ ...emails, bucket: -1 }], 'has bucket = -1'],
  [[emails, emails], "workers (leasehold.config.mjs) has the name 'emails' twice"],
])('case %#: an invalid declaration is refused with the field, the value and the rule', (value, text) => {
  const found = problems(value)
  expect(found).toHaveLength(1)
  expect(found[0]).toContain(text)
})

it('all problems are reported at once', () => {
  expect(problems([{ name: '', table, handle: 1 }, 7])).toHaveLength(3)
})

it("a worker's own lease duration is checked against the timings that apply to all workers", () => {
  const short = [{ ...emails, settings: { leaseMs: 10_000 } }]
  expect(problems(short)).toEqual([])
  expect(problems(short, { heartbeatMs: 9_000 })[0]).toContain('heartbeatMs is 9000')
})
