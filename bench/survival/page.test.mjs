import { expect, it } from 'vitest'
import { duration, survivalPage } from './page.mjs'

const trial = (more) => ({
  round: 1,
  written: 5,
  once: 5,
  twice: 0,
  lost: 0,
  stuck: 0,
  stuckAlthoughDone: 0,
  told: [],
  ...more,
})

/** Nothing in it was measured. */
const record = (trials) => ({
  at: '2026-01-02T03:04:05.000Z',
  commit: 'made-up',
  seed: '7',
  rounds: 1,
  waitSeconds: 60,
  blockSeconds: 40,
  versions: { 'graphile-worker': '0.0.1', 'pg-boss': '0.0.2', PostgreSQL: '18', Node: '24' },
  machine: { cores: 2 },
  trials,
})

const rowOf = (page, heading, side) =>
  page
    .split(`## ${heading}`)[1]
    .split('\n')
    .find((line) => line.startsWith(`| ${side} |`))

const ZOMBIE = 'Zombie: stopped past its lock, continued while another process runs its jobs'

it('the page of survival says how many jobs a zombie finished, for our sides as for those of others', () => {
  const page = survivalPage(
    record([
      trial({ stage: 'zombie', side: 'leasehold', zombieFinished: 2 }),
      trial({ stage: 'zombie', side: 'graphile-worker', zombieFinished: 0 }),
    ]),
  )
  expect(rowOf(page, ZOMBIE, 'Leasehold')).toContain('**yes, 2**')
  expect(rowOf(page, ZOMBIE, 'graphile-worker')).not.toContain('yes')
})

it('the page of survival adds up all rounds, and says how long stuck jobs still wait', () => {
  const stuck = { stage: 'kill', side: 'pg-boss', once: 2, stuck: 3, dueSeconds: 840, takenAfterAgeing: true }
  const page = survivalPage(record([trial(stuck), trial({ ...stuck, round: 2 })]))
  expect(rowOf(page, 'SIGKILL in the middle of jobs', 'pg-boss')).toBe(
    '| pg-boss | 10 | 4 | 0 | 0 | 6: due in another 14 min; taken once the time of the lock was moved back | not seen |',
  )
})

it('the page of survival lists where a peer is faster, or does less twice, than Leasehold', () => {
  const page = survivalPage(
    record([
      trial({ stage: 'kill', side: 'leasehold', seconds: 3, once: 4, twice: 1 }),
      trial({ stage: 'kill', side: 'pg-boss', seconds: 2 }),
    ]),
  )
  const better = page.split('## Where a peer does better')[1]
  expect(better).toContain('pg-boss does 0 of 5 jobs more than once, Leasehold 1.')
  expect(better).toContain('pg-boss takes 2.0 s, Leasehold 3.0 s (medians).')
})

it('the page of survival shows a trial that failed as not measured, and counts nothing of it', () => {
  const page = survivalPage(
    record([
      trial({ stage: 'kill', side: 'leasehold', seconds: 3 }),
      { round: 2, stage: 'kill', side: 'leasehold', error: 'made up' },
    ]),
  )
  expect(rowOf(page, 'SIGKILL in the middle of jobs', 'Leasehold')).toBe(
    '| Leasehold | 5 | 5 | 0 | 0 | 0 | 3.0 s |',
  )
  expect(page).toContain('Not measured: Leasehold in round 2: made up.')
})

it('durations on the page of survival are in a unit that fits them', () => {
  expect([8, 840, 14_380].map((seconds) => duration(seconds))).toEqual(['8 s', '14 min', '4 h 0 min'])
})
