import { beforeEach, describe, expect, it } from 'vitest'
import { useCommandLine } from '../../../test/support/command-line.ts'
import { chunkStates, emptySync, jobStates, makeChunks, makeJob } from '../../../test/support/sync-rows.ts'
import { auditEntries } from '../../../test/support/outbox-rows.ts'

const { db, call: sync, json } = useCommandLine('sync')
beforeEach(async () => emptySync(db))

const WHY = ['--reason', 'it is back', '--principal', 'ada']

describe('enqueue', () => {
  it('enqueue creates a job, and says how to follow it', async () => {
    const { code, stdout } = await sync(['enqueue', 'ins-tempo', 'POP105A'])
    expect(code).toBe(0)
    expect(stdout).toBe('Written: job 1, ins-tempo, POP105A. `leasehold sync status 1 --watch` follows it.\n')
    expect(await jobStates(db)).toMatchObject([{ id: '1', state: 'AVAILABLE' }])
  })

  it('with everything that a job has', async () => {
    const flags = [
      '--params',
      '{"year": 2024}',
      '--priority',
      '-5',
      '--force',
      '--fresh-for',
      '2h',
      '--parallel',
    ]
    expect(await json(['enqueue', 'a', 'm', ...flags])).toEqual({ jobId: '1', created: true })
    expect(await json(['list'])).toMatchObject({
      jobs: [{ params: { year: 2024 }, priority: -5, force: true, freshForMs: 7_200_000, parallel: true }],
    })
  })

  it('one that is open already is the answer', async () => {
    await sync(['enqueue', 'a', 'm'])
    const { code, stdout } = await sync(['enqueue', 'a', 'm'])
    expect(code).toBe(0)
    expect(stdout).toMatch(/^Nothing written: job 1 of a, m is open already; --parallel/)
    expect(await json(['enqueue', 'a', 'm', '--parallel'])).toMatchObject({ created: true })
  })

  it.each([
    [['enqueue', 'a'], /missing required argument 'matrix'/],
    [['enqueue', '', 'm'], /<definition> is ""/],
    [['enqueue', 'a', 'm', '--params', '{'], /--params is "\{": give JSON/],
    [['enqueue', 'a', 'm', '--priority', 'high'], /--priority is "high"/],
    [['enqueue', 'a', 'm', '--fresh-for', '2'], /--fresh-for is "2": say how long/],
  ])('the arguments %j are refused as wrong usage, and nothing is written', async (args, message) => {
    const { code, stderr } = await sync(args)
    expect(code).toBe(2)
    expect(stderr).toMatch(message)
    expect(await jobStates(db)).toEqual([])
  })
})

describe('status', () => {
  it('status prints one job, all jobs, or that there are none', async () => {
    expect((await sync(['status'])).stdout).toBe('No job is open, and none has failed within a day.\n')
    const jobId = await makeJob(db, { agoMs: 600_000 })
    await makeChunks(db, jobId, 30, { state: 'done', rows: 20, agoMs: 20_000 })
    await makeChunks(db, jobId, 30, { from: 31 })
    expect((await sync(['status', jobId])).stdout).toBe(`Job 1: numbers, m
syncing, enqueued 10 min ago
███████████████░░░░░░░░░░░░░░░ 50 % 30 of 60 chunks
30 synced · 30 waiting
600 rows · 10 rows/s · 30 chunks/min · about 60 s left

No runner is alive, so nothing is synced. Start one with \`leasehold work\`.
`)
    expect((await sync(['status'])).stdout).toMatch(
      /^1 +numbers +m +syncing +█{5}░{5} 50 % of 60 +600 +10 +60 s$/m,
    )
    expect(await json(['status', jobId])).toMatchObject({
      id: '1',
      timeLeftMs: 60_000,
      runners: 0,
      token: '0',
    })
    expect(await json(['status'])).toMatchObject({ jobs: [{ id: '1' }], more: false, runners: 0 })
  })

  it('what is unknown is null in JSON', async () => {
    await makeJob(db, { planned: false })
    expect(await json(['status', '1'])).toMatchObject({
      phase: 'waiting',
      rowsPerSecond: null,
      chunksPerMinute: null,
      timeLeftMs: null,
    })
  })

  it.each([
    [{ state: 'completed' }, 0],
    [{ state: 'failed', error: 'x' }, 1],
  ] as const)('status --watch of a job that is %j ends at once, with exit code %d', async (made, code) => {
    await makeJob(db, made)
    const called = await sync(['status', '1', '--watch'])
    expect(called.code).toBe(code)
    expect(called.stdout).toMatch(/^Job 1: numbers, m\n/)
    const lines = (await sync(['status', '1', '--watch', '--json'])).stdout.trimEnd().split('\n')
    expect(lines).toHaveLength(1)
    expect(JSON.parse(lines[0] ?? '')).toMatchObject({ id: '1' })
  })

  it('status --watch of a job that does not exist, or is deleted, is an error', async () => {
    expect(await sync(['status', '9', '--watch'])).toMatchObject({
      code: 1,
      stderr: expect.stringMatching(/JOB_NOT_FOUND: No sync job has the id 9/),
    })
  })

  it.each([
    [['status', 'x'], /<job> is "x": give the number of a job/],
    [['status', '1', '--every', '1s'], /--every goes with --watch/],
    [['status', '--watch', '--every', '0s'], /--every is "0s"/],
    [['status', '--watch', '--every', '100d'], /--every is "100d"/],
  ])('the arguments %j are refused as wrong usage', async (args, message) => {
    const { code, stderr, stdout } = await sync(args)
    expect({ code, stdout }).toEqual({ code: 2, stdout: '' })
    expect(stderr).toMatch(message)
  })
})

describe('list', () => {
  it('list prints a table, newest first, page by page', async () => {
    const first = await makeJob(db, { matrix: 'a', agoMs: 7_200_000 })
    await makeChunks(db, first, 2, { matrix: 'a', state: 'failed' })
    await makeChunks(db, first, 2, { matrix: 'a', state: 'done', from: 3 })
    await makeJob(db, { matrix: 'b', state: 'completed', agoMs: 600_000, endedAgoMs: 300_000 })
    await makeJob(db, {
      matrix: 'c',
      state: 'failed',
      error: 'no\nplan',
      planned: false,
      priority: 3,
      agoMs: 5_000,
    })
    const { code, stdout } = await sync(['list'])
    expect(code).toBe(0)
    expect(stdout.split('\n').map((line) => line.replaceAll(/ {2,}/g, ' | '))).toEqual([
      'ID | STATE | SYNC | MATRIX | PRIORITY | CHUNKS | ENQUEUED | DETAILS',
      expect.stringMatching(/^3 \| FAILED \| numbers \| c \| 3 \| - \| \d+ s ago \| no plan$/),
      '2 | COMPLETED | numbers | b | 0 | - | 10 min ago | completed 5 min ago',
      '1 | AVAILABLE | numbers | a | 0 | █████░░░░░ 50 % of 4 | 2 h ago | 2 chunks failed',
      '',
    ])
    expect((await sync(['list', '--limit', '2'])).stdout).toMatch(/There are more: --before 2 shows/)
    expect(await json(['list', '--before', '2'])).toMatchObject({ jobs: [{ id: '1' }], next: null })
    expect(await json(['list', '--state', 'failed,completed', '--matrix', 'b'])).toMatchObject({
      jobs: [{ id: '2' }],
    })
    expect((await sync(['list', '--definition', 'x'])).stdout).toBe('No such jobs.\n')
  })

  it('list says when there is nothing', async () => {
    expect((await sync(['list'])).stdout).toBe('There are no sync jobs.\n')
  })

  it.each([
    [
      ['--state', 'lost'],
      /--state is "lost": give one or more of available, running, expired, completed, failed/,
    ],
    [['--before', 'x'], /--before is "x"/],
    [['--limit', '0'], /--limit is "0"/],
  ])('the arguments %j are refused as wrong usage', async (args, message) => {
    const { code, stderr } = await sync(['list', ...args])
    expect(code).toBe(2)
    expect(stderr).toMatch(message)
  })
})

describe('show', () => {
  it('all there is to know of a job, and its chunks', async () => {
    await makeJob(db, { owner: 'host-9' })
    await makeChunks(db, '1', 1, { state: 'done', rows: 1_234, agoMs: 180_000 })
    await makeChunks(db, '1', 1, { state: 'running', owner: 'host-2', from: 2 })
    await makeChunks(db, '1', 1, {
      state: 'failed',
      error: 'HTTP\n500',
      attempts: 5,
      from: 3,
      agoMs: 300_000,
    })
    await makeChunks(db, '1', 1, { state: 'dropped', from: 4 })
    const { code, stdout } = await sync(['show', '1'])
    expect(code).toBe(0)
    expect(stdout).toMatch(/^Job {11}1\nSync {10}numbers\nMatrix {8}m\nState {9}RUNNING, syncing\n/)
    expect(stdout).toMatch(/^Chunks {8}1 of 4 done, 25 %$/m)
    expect(stdout).toMatch(/^Leased until {2}.* by host-9$/m)
    expect(
      stdout
        .split('\n')
        .slice(-6)
        .map((line) => line.replaceAll(/ {2,}/g, ' | ')),
    ).toEqual([
      'CHUNK | STATE | QUERY | FAILED | ROWS | DETAILS',
      'c1 | COMPLETED | {"n":1} | 0 | 1,234 | synced 3 min ago',
      'c2 | RUNNING | {"n":2} | 0 | - | by host-2',
      'c3 | FAILED | {"n":3} | 5 | - | given up 5 min ago: HTTP 500',
      'c4 | AVAILABLE | {"n":4} | 0 | - | dropped',
      '',
    ])
    expect((await sync(['show', '1', '--limit', '2'])).stdout).toContain('There are more: --after c2 shows')
    expect(await json(['show', '1', '--state', 'failed', '--after', 'c1'])).toMatchObject({
      job: { id: '1', chunks: { total: 4 } },
      chunks: [{ hash: 'c3', errorMessage: 'HTTP\n500', token: '0' }],
      next: null,
    })
    expect((await sync(['show', '1', '--state', 'expired'])).stdout).toContain('No such chunks.')
  })

  it('one that is not there is an error, and what cannot be a job is wrongly called', async () => {
    expect((await sync(['show', '9'])).code).toBe(1)
    expect((await sync(['show', 'x'])).code).toBe(2)
  })
})

describe('cancel and replay', () => {
  it('cancel fails an open job and replay reopens it, with who and why in the audit', async () => {
    await makeJob(db)
    await makeChunks(db, '1', 2)
    await makeChunks(db, '1', 1, { state: 'running', from: 3 })
    await makeChunks(db, '1', 1, { state: 'failed', from: 4 })
    const cancelled = await sync(['cancel', '1', ...WHY])
    expect(cancelled).toMatchObject({ code: 0, stderr: '' })
    expect(cancelled.stdout).toMatch(
      /^Cancelled 1 job\. It is recorded in the audit as \S+\.\n3 chunks dropped, of which 1 is in flight and will be finished\.\n$/,
    )
    expect(await jobStates(db)).toMatchObject([{ state: 'FAILED', error: 'cancelled by ada: it is back' }])
    expect(await sync(['cancel', '1', '9', ...WHY])).toMatchObject({
      code: 1,
      stdout:
        'No job was cancelled: none matches.\n' +
        '1 was not cancelled: it has failed already: cancelled by ada: it is back.\n' +
        '9 was not cancelled: there is no such job.\n',
    })
    const replayed = await sync(['replay', '1', ...WHY])
    expect(replayed.code).toBe(0)
    expect(replayed.stdout).toMatch(
      /^Replayed 1 job\. It is recorded in the audit as \S+\.\n1 failed chunk and 3 dropped chunks will be synced\.\n$/,
    )
    expect((await chunkStates(db)).every(({ needed, state }) => needed && state !== 'FAILED')).toBe(true)
    expect(
      (await auditEntries(db)).map(({ principal, action, target }) => [principal, action, target]),
    ).toEqual([
      ['ada', 'sync.cancel', '1'],
      ['ada', 'sync.replay', '1'],
    ])
  })

  it('a replay of named jobs of one matrix says which were not replayed and why, with exit code 1', async () => {
    for (const endedAgoMs of [30_000, 20_000, 10_000]) await makeJob(db, { state: 'failed', endedAgoMs })
    const { code, stdout } = await sync(['replay', '1', '2', '3', ...WHY])
    expect(code).toBe(1)
    expect(stdout).toMatch(/^Replayed 1 job\./)
    for (const id of ['2', '3'])
      expect(stdout).toContain(`\n${id} was not replayed: job 1 of the same matrix, m, is open;`)
  })

  it('a dry run says how many chunks would be synced or dropped', async () => {
    await makeChunks(db, await makeJob(db, { state: 'failed' }), 3, { state: 'failed' })
    await makeChunks(db, await makeJob(db, { matrix: 'open' }), 2, { matrix: 'open' })
    expect((await sync(['replay', '--state', 'failed', '--dry-run'])).stdout).toBe(
      'Would replay 1 job. Nothing was changed.\n3 failed chunks would be synced.\n',
    )
    expect((await sync(['cancel', '--matrix', 'open', '--dry-run'])).stdout).toBe(
      'Would cancel 1 job. Nothing was changed.\n2 chunks would be dropped.\n',
    )
  })

  it('cancel has no --since: an open job has no time of failure', async () => {
    const { code, stderr } = await sync(['cancel', '--since', '2h', ...WHY])
    expect(code).toBe(2)
    expect(stderr).toContain("unknown option '--since'")
    expect((await sync(['cancel', '--help'])).stdout).not.toContain('--since')
    expect((await sync(['replay', '--help'])).stdout).toContain('--since')
  })

  it('--json prints one document with the same names in every application', async () => {
    await makeJob(db, { planned: false })
    expect(await json(['cancel', '1', ...WHY])).toEqual({
      changeId: expect.any(String),
      dryRun: false,
      matched: 1,
      changed: 1,
      changedBefore: 0,
      counts: { droppedChunks: 0, inFlight: 0 },
      firstId: '1',
      lastId: '1',
      lastDueAt: null,
      finished: true,
      skipped: [],
    })
    expect(await json(['replay', '1', ...WHY])).toMatchObject({
      changed: 1,
      counts: { failedChunks: 0, droppedChunks: 0, unplanned: 1, conflicting: 0 },
    })
  })

  it('by filter both ask, with the number; a dry run counts, and resuming a finished change is refused', async () => {
    for (const matrix of ['a', 'b', 'c']) await makeJob(db, { matrix, state: 'failed', error: 'HTTP 503' })
    await makeJob(db, { matrix: 'a', state: 'failed', error: 'HTTP 503' })
    const chosen = ['--error', 'http 503', '--since', '1h']
    expect((await sync(['replay', ...chosen, '--dry-run'])).stdout).toBe(
      'Would replay 3 jobs. Nothing was changed.\n' +
        '1 more matches, but another job of the same matrix is open or is replayed.\n',
    )
    const no = await sync(['replay', ...chosen, ...WHY], { answer: 'n' })
    expect(no).toMatchObject({ code: 1, stdout: '', asked: ['Replay 3 jobs? [y/N] '] })
    const yes = await sync(['replay', ...chosen, '--rate', '0.1', '--yes', ...WHY])
    expect(yes.stdout).toMatch(
      /^Replayed 3 jobs\. The last is due in (19|20) s, at \S+Z\. It is recorded in the audit as/,
    )
    const [, id = ''] = /It is recorded in the audit as ([0-9a-f-]{36})/.exec(yes.stdout) ?? []
    expect((await sync(['replay', '--resume', id])).stderr).toMatch(/This replay was finished at/)
    expect((await sync(['cancel', '--resume', id])).stderr).toMatch(/No cancel has this id/)
    expect((await sync(['cancel', '--definition', 'numbers', '--yes', ...WHY])).stdout).toMatch(
      /^Cancelled 3 jobs\./,
    )
  })

  it.each([
    [['cancel', '1'], /--reason is missing/],
    [['cancel', 'x', ...WHY], /"x" is not an id: give the number of one of the jobs/],
    [['cancel', ...WHY], /say which jobs: by their ids, or with --definition/],
    [['cancel', '--definition', 'numbers', ...WHY], /--yes is missing/],
    [['cancel', '--state', 'failed', '--yes', ...WHY], /states is "FAILED".*Only open jobs/],
    [['replay', '1'], /--reason is missing/],
    [['replay', '1', '--rate', '0', ...WHY], /--rate is "0": give the jobs per second/],
  ])('the arguments %j are refused as wrong usage, and nothing is changed', async (args, message) => {
    await makeJob(db)
    const { code, stderr } = await sync(args)
    expect(code).toBe(2)
    expect(stderr).toMatch(message)
    expect(await jobStates(db)).toMatchObject([{ state: 'AVAILABLE' }])
  })
})

it('a schema without sync is told what to do', async () => {
  await db.query({ text: 'create schema earlier' })
  await db.query({ text: 'create table earlier.workers (like leasehold.workers)' })
  const { code, stderr } = await sync(['list', '--schema', 'earlier'])
  expect(code).toBe(1)
  expect(stderr).toMatch(/The schema earlier has no sync yet\. Run `leasehold migrate`/)
})
