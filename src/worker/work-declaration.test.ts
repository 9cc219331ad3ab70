import { describe, expect, it } from 'vitest'
import { messageOf } from '../errors.ts'
import { leaseTable } from '../lease/index.ts'
import { startRuntime } from './process.ts'
import { type RuntimeOptions, workProblems } from './work-declaration.ts'

const declaration = {
  table: 'public.emails',
  id: 'id',
  lease: { owner: 'lease_owner', until: 'lease_until' },
  claimable: 'sent_at is null',
  order: ['id'],
  onExpiry: 'claimable',
  attempts: {},
  outcomes: { done: {}, dead: {} },
} as const
const table = leaseTable(declaration)
const handle = async (): Promise<void> => {}
const emails = { name: 'emails', table, handle }

const FILE = ' (leasehold.config.mjs)'

function problems(workers: readonly unknown[], settings = {}): readonly string[] {
  return workProblems(workers, settings, FILE)
}

it('valid declarations have no problems', () => {
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
      role: undefined,
    },
  ]
  expect(problems(workers)).toEqual([])
})

it.each<[readonly unknown[], string]>([
  [['emails'], "workers[0] (leasehold.config.mjs) is 'emails', but must be an object"],
  [[[emails]], 'to add the workers of a list, write ...list'],
  [
    [{ ...emails, name: undefined }],
    'workers[0].name (leasehold.config.mjs) is undefined, but must be a name',
  ],
  [[emails, { ...emails, name: 'a,b' }], "workers[1].name (leasehold.config.mjs) is 'a,b'"],
  [[{ ...emails, name: 'reaper' }], 'and not reaper'],
  [
    [{ ...emails, table: 'public.emails' }],
    "table of 'emails' (leasehold.config.mjs) is 'public.emails', but must be a lease table",
  ],
  [[{ ...emails, table: declaration }], 'wrap it in leaseTable(…)'],
  [
    [{ ...emails, handle: 'send' }],
    "handle of 'emails' (leasehold.config.mjs) is 'send', but must be a function",
  ],
  [
    [{ ...emails, handler: handle }],
    "workers[0] of 'emails' (leasehold.config.mjs): unknown option handler (did you mean handle?)",
  ],
  [
    [{ ...emails, weather: 1 }],
    'unknown option weather (the options are name, role, table, handle, settings,',
  ],
  [[{ ...emails, scenery: {} }], 'unknown option scenery'],
  [[{ ...emails, settings: 5 }], "settings of 'emails' (leasehold.config.mjs) is 5"],
  [
    [{ ...emails, settings: { concurrency: 0 } }],
    "workers[0].settings of 'emails' (leasehold.config.mjs): The settings",
  ],
  [[{ ...emails, settings: { pollMS: 10 } }], 'unknown setting pollMS (did you mean pollMs?)'],
  [[{ ...emails, settings: { leaseMs: 1_000, heartbeatMs: 400 } }], 'heartbeatMs is 400'],
  [[{ ...emails, retry: { factor: 2 } }], 'unknown option retry'],
  [[{ ...emails, limits: { concurrency: 1 } }], "limits of 'emails' (leasehold.config.mjs) is {"],
  [[{ ...emails, probe: { everyMs: 0, check: handle } }], "probe of 'emails' (leasehold.config.mjs) is"],
  [
    [{ ...emails, wake: 'yes' }],
    "wake of 'emails' (leasehold.config.mjs) is 'yes', but must be true or false",
  ],
  [[{ ...emails, bucket: -1 }], "bucket of 'emails' (leasehold.config.mjs) is -1"],
  [[emails, emails], "workers (leasehold.config.mjs) has the name 'emails' twice"],
])('case %#: an invalid declaration is refused with the field, the value and the rule', (value, text) => {
  const found = problems(value)
  expect(found).toHaveLength(1)
  expect(found[0]).toContain(text)
})

it('all problems are reported at once', () => {
  expect(problems([{ name: '', table, handle: 1 }, 7])).toHaveLength(3)
})

it('a table that lacks an outcome is refused with what to declare, and that is enough', () => {
  const bare = { table: 'public.emails', claimable: 'sent_at is null' }
  expect(problems([{ ...emails, table: leaseTable(bare) }])).toEqual([
    "workers[0].table of 'emails' (leasehold.config.mjs) is public.emails, which has no outcome done: declare it in `outcomes`, for example done: { finished_at: 'now()' }",
    "workers[0].table of 'emails' (leasehold.config.mjs) is public.emails, which has no outcome retry: declare `attempts: {}` or `availableAt`, and the table has it",
    "workers[0].table of 'emails' (leasehold.config.mjs) is public.emails, which has no outcome dead: declare it in `outcomes`, for example dead: { failed_at: 'now()' }",
  ])
  const outcomes = { done: { finished_at: 'now()' }, dead: { failed_at: 'now()' } }
  for (const more of [{ attempts: {} }, { availableAt: 'due_at' }])
    expect(problems([{ ...emails, table: leaseTable({ ...bare, outcomes, ...more }) }])).toEqual([])
})

it("a worker's own lease duration is checked against the timings that apply to all workers", () => {
  const short = [{ ...emails, settings: { leaseMs: 10_000 } }]
  expect(problems(short)).toEqual([])
  expect(problems(short, { heartbeatMs: 9_000 })[0]).toContain('heartbeatMs is 9000')
})

describe('startRuntime refuses options that cannot work, before it connects to anything', () => {
  const databaseUrl = 'postgresql://127.0.0.1:1/nowhere'
  const options = { databaseUrl, workers: [emails] }

  it.each<[unknown, string]>([
    [
      undefined,
      'a value of type undefined was given, but they must be an object (the options are databaseUrl,',
    ],
    [databaseUrl, 'a value of type string was given'],
    [{}, 'databaseUrl is undefined, but must be a URL such as postgresql://'],
    [{ ...options, databaseURL: 'x' }, 'unknown option databaseURL (did you mean databaseUrl?)'],
    [{ databaseUrl, worker: [emails] }, 'unknown option worker (did you mean workers?)'],
    [{ databaseUrl }, 'workers is undefined, so that there is nothing to do'],
    [{ databaseUrl, workers: [] }, 'workers is [], so that there is nothing to do'],
    [{ databaseUrl, reapTables: [{ table }], reaper: false }, 'there is nothing to do'],
    [{ ...options, workers: emails }, 'but must be a list of { name, table, handle }'],
    [{ ...options, workers: [{ ...emails, weather: 1 }] }, "workers[0] of 'emails': unknown option weather"],
    [{ ...options, workers: [emails, emails] }, "workers has the name 'emails' twice"],
    [{ ...options, settings: { concurency: 5 } }, 'unknown setting concurency (did you mean concurrency?)'],
    [{ databaseUrl, reapTables: [{ table }], settings: { leaseMs: 1 } }, 'leaseMs is 1'],
    [
      { ...options, databaseUrl: 'my-database' },
      'databaseUrl is set (and not shown), but must be a URL such as postgresql://',
    ],
    [
      { ...options, log: console },
      '…, but must be false, or a logger with debug, info, warn, error and child, such as one of pino.',
    ],
    [
      { ...options, settings: { leaseMs: '5000', concurency: 5, batch: 0, paused: 'no' } },
      [
        'The options of startRuntime: settings: unknown setting concurency (did you mean concurrency?)',
        "settings: leaseMs is '5000', but must be a number of milliseconds from 250 to 86400000",
        'settings: batch is 0, but must be a whole number from 1 to 10000',
        "settings: paused is 'no', but must be true or false. Correct",
      ].join('; '),
    ],
    [
      { ...options, workerId: 'a', leaseMs: 5_000 },
      'The options of startRuntime: workerId is given as id; leaseMs is given as settings: { leaseMs }. Correct',
    ],
    [{ ...options, heartbeat: 'process' }, "heartbeat is 'process', but must be 'thread' or 'inline'"],
    [{ ...options, log: true }, 'log is true, but must be false, or a logger with debug'],
    [{ ...options, events: [] }, 'events is [], but must be made with new Events()'],
    [{ ...options, migrate: 'yes' }, "migrate is 'yes', but must be true or false"],
    [{ ...options, maxConnections: 0 }, 'maxConnections is 0, but must be a whole number from 1'],
    [{ ...options, presenceMs: 0 }, 'presenceMs is 0'],
    [{ ...options, reapTables: ['public.emails'] }, 'reapTables is'],
  ])('case %#', async (given, text) => {
    // Deliberately not what the type allows: plain JavaScript gets no help from it.
    const started = startRuntime(given as RuntimeOptions)
    await expect(started).rejects.toMatchObject({ code: 'SETTING_INVALID' })
    await expect(started).rejects.toThrow('The options of startRuntime: ')
    await expect(started).rejects.toThrow(text)
  })

  it('with every problem at once', async () => {
    const given = { workers: [{ ...emails, name: '' }], migrate: 1, schema: '' }
    const message = await startRuntime(given as unknown as RuntimeOptions).catch(messageOf)
    for (const problem of ['databaseUrl is', 'schema is', 'migrate is', 'workers[0].name is'])
      expect(message).toContain(problem)
  })
})
