import { describe, expect, it } from 'vitest'
import type { ChunkSummary } from '../../sync/admin/chunks.ts'
import type { JobProgress } from '../../sync/admin/progress.ts'
import { bar, fitted, jobsText, jobText, percent, rate } from './progress-text.ts'
import { redrawing } from '../watch.ts'
import { asText } from './status.ts'

const NOW = new Date('2026-03-01T12:00:00Z')

function ago(ms: number): Date {
  return new Date(NOW.getTime() - ms)
}

const NONE = { total: 0, done: 0, skipped: 0, running: 0, waiting: 0, retrying: 0, failed: 0, dropped: 0 }

const CHUNK: ChunkSummary = {
  hash: 'a1b2c3d4e5f6a7b8',
  query: { year: 2001 },
  position: 1,
  state: 'RUNNING',
  needed: true,
  skipped: false,
  attempts: 0,
  nextAttemptAt: ago(0),
  lastSyncedAt: null,
  rowCount: null,
  completedAt: null,
  failedAt: null,
  errorMessage: null,
  lockedBy: 'host-1',
  lockedUntil: ago(-90_000),
  token: 1n,
}

const JOB: JobProgress = {
  id: '7',
  definition: 'ins-tempo',
  matrixId: 'POP105A',
  params: {},
  priority: 0,
  force: false,
  freshForMs: null,
  parallel: false,
  state: 'AVAILABLE',
  phase: 'syncing',
  createdAt: ago(600_000),
  plannedAt: ago(590_000),
  nextCheckAt: ago(0),
  attempts: 0,
  completedAt: null,
  failedAt: null,
  errorMessage: null,
  lockedBy: null,
  lockedUntil: null,
  token: 3n,
  chunks: {
    ...NONE,
    total: 2_000,
    done: 940,
    skipped: 100,
    running: 4,
    waiting: 950,
    retrying: 2,
    failed: 6,
  },
  rows: 1_234_567,
  rowsPerSecond: 1_250.4,
  chunksPerMinute: 67.9,
  timeLeftMs: 843_000,
  working: [],
  failures: [],
}

const FAILED = {
  ...CHUNK,
  lockedBy: null,
  attempts: 5,
  failedAt: ago(180_000),
  errorMessage: 'HTTP 500\n\u001b[31mno',
}

describe('one job', () => {
  it('a job has a bar, the counts, the rows, the pace and the remaining time', () => {
    expect(jobText(JOB, NOW)).toBe(`Job 7: ins-tempo, POP105A
syncing, enqueued 10 min ago
███████████████░░░░░░░░░░░░░░░ 52 % 1,040 of 2,000 chunks
940 synced · 100 skipped, fresh enough · 4 running · 950 waiting (2 after a failed attempt) · 6 failed
1,234,567 rows · 1,250 rows/s · 68 chunks/min · about 14 min left`)
  })

  it('the text has who works on what, and why chunks failed, without control characters', () => {
    const text = jobText({ ...JOB, working: [CHUNK], failures: [FAILED] }, NOW)
    expect(text.split('\n').slice(5)).toEqual([
      '',
      'WORKER  CHUNK          ATTEMPT  LEASE ENDS',
      'host-1  {"year":2001}  1        in 90 s',
      'and 3 more',
      '',
      'FAILED CHUNK   ATTEMPTS  GIVEN UP   WHY',
      '{"year":2001}  5         3 min ago  HTTP 500 [31mno',
      'and 5 more: `leasehold sync show 7 --state failed`',
    ])
  })

  it('the text has at most the wanted number of entries of each kind', () => {
    const text = jobText({ ...JOB, working: [CHUNK, CHUNK, CHUNK] }, NOW, { most: 2 })
    expect(text.match(/host-1/g)).toHaveLength(2)
    expect(text).toContain('and 2 more')
  })

  it.each<[string, Partial<JobProgress>, string]>([
    [
      'waiting',
      { phase: 'waiting', attempts: 2, errorMessage: 'HTTP 503', nextCheckAt: ago(-20_000), chunks: NONE },
      'waiting to be planned, enqueued 10 min ago; planning failed 2 times: HTTP 503, next try in 20 s',
    ],
    [
      'planning',
      { phase: 'planning', lockedBy: 'host-1', chunks: NONE },
      'being planned by host-1, enqueued 10 min ago',
    ],
    [
      'completed',
      { phase: 'completed', completedAt: ago(300_000), chunks: NONE },
      'completed 5 min ago, 5 min after it was enqueued',
    ],
    [
      'failed',
      { phase: 'failed', failedAt: ago(300_000), errorMessage: 'cancelled by ada: no', chunks: NONE },
      'failed 5 min ago, 5 min after it was enqueued: cancelled by ada: no',
    ],
  ])('that is %s', (_, more, line) => {
    expect(jobText({ ...JOB, ...more }, NOW)).toBe(`Job 7: ins-tempo, POP105A\n${line}`)
  })

  it('while a job is planned, the number of its chunks may grow, and the remaining time is unknown', () => {
    const chunks = { ...NONE, total: 10, done: 5, waiting: 5 }
    const text = jobText({ ...JOB, phase: 'planning', chunks, timeLeftMs: undefined }, NOW)
    expect(text).toContain('5 of 10 chunks known so far')
    expect(text).not.toContain('left')
    expect(jobText({ ...JOB, timeLeftMs: undefined }, NOW)).toContain('time left unknown yet')
  })

  it('the text of a failed job says how to continue', () => {
    const text = jobText({ ...JOB, phase: 'failed', failedAt: NOW, failures: [FAILED] }, NOW)
    expect(text).toContain("To sync the failed chunks again: `leasehold sync replay 7 --reason '…'`.")
  })
})

describe('several jobs', () => {
  it('each of several jobs has one line, with what matters', () => {
    const failed = {
      ...JOB,
      id: '6',
      phase: 'failed',
      errorMessage: 'no plan',
      chunks: NONE,
      rows: 0,
    } as const
    const unknown = { rowsPerSecond: undefined, timeLeftMs: undefined }
    expect(jobsText({ jobs: [JOB, { ...failed, ...unknown }], more: true })).toBe(
      `JOB  SYNC       MATRIX   PHASE    PROGRESS                  ROWS       ROWS/S  ETA     DETAILS
7    ins-tempo  POP105A  syncing  █████░░░░░ 52 % of 2,000  1,234,567  1,250   14 min  6 chunks failed, 2 waiting for a retry
6    ins-tempo  POP105A  failed   -                         0          -       -       no plan
More jobs are open: \`leasehold sync list\`.`,
    )
  })

  it('at a narrow terminal several jobs have no bars, and fit its width', () => {
    const text = jobsText({ jobs: [JOB], more: false }, 90)
    expect(text).toContain('52 % of 2,000')
    expect(Math.max(...text.split('\n').map(({ length }) => length))).toBeLessThanOrEqual(90)
  })
})

it('the text says when nobody works on an open job', () => {
  const nobody = 'No runner is alive, so nothing is synced.'
  expect(asText({ job: JOB, runners: 0 }, NOW)).toContain(nobody)
  expect(asText({ job: JOB, runners: 1 }, NOW)).not.toContain(nobody)
  expect(asText({ job: { ...JOB, phase: 'completed' }, runners: 0 }, NOW)).not.toContain(nobody)
  expect(asText({ all: { jobs: [JOB], more: false }, runners: 0 }, NOW)).toContain(nobody)
})

it('the bar is full only when everything is done', () => {
  const chunks = { ...NONE, total: 1_000, done: 999 }
  expect([bar(chunks, 10), percent(chunks)]).toEqual(['█████████░', '99 %'])
  expect(percent({ ...chunks, skipped: 1 })).toBe('100 %')
  expect([bar(NONE, 3), percent(NONE)]).toEqual(['░░░', '0 %'])
})

it.each([
  [0, '0'],
  [0.012_34, '0.012'],
  [3.456, '3.5'],
  [12.4, '12'],
  [12_345.6, '12,346'],
])('a rate of %d is %s', (number, text) => {
  expect(rate(number)).toBe(text)
})

it('a redraw begins where the last one began, and clears what was longer', () => {
  let written = ''
  const write = redrawing((text) => (written += text))
  write('one\ntwo\nthree')
  write('four')
  write('five')
  expect(written).toBe('one\ntwo\nthree\n\u001b[3A\u001b[0Jfour\n\u001b[1A\u001b[0Jfive\n')
})

it('no line is longer than the terminal is wide', () => {
  expect(fitted('12345\n123456', 5)).toBe('12345\n1234…')
})
