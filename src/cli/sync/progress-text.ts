/** Progress, as a person reads it. */
import type { ChunkSummary } from '../../sync/admin/chunks.ts'
import type { ChunkCounts } from '../../sync/admin/chunk-counts.ts'
import type { JobPhase, JobSummary } from '../../sync/admin/jobs.ts'
import type { JobProgress, ProgressOfAll } from '../../sync/admin/progress.ts'
import { columns, counted, duration, grouped, printable, relative } from '../output.ts'

const BAR = 30
const SMALL_BAR = 10

/** `██████░░░░`; it is full only when everything is. */
export function bar({ total, done, skipped }: ChunkCounts, width = BAR): string {
  const full = total === 0 ? 0 : Math.floor(((done + skipped) / total) * width)
  return `${'█'.repeat(full)}${'░'.repeat(width - full)}`
}

/** `52 %`; 100 only when everything is done. */
export function percent({ total, done, skipped }: ChunkCounts): string {
  return `${total === 0 ? 0 : Math.floor(((done + skipped) / total) * 100)} %`
}

export interface TextOptions {
  readonly width?: number | undefined
  /** How many chunks of a kind are shown at most: what is redrawn has to fit onto the screen. */
  readonly most?: number | undefined
}

/** Everything about one job. */
export function jobText(job: JobProgress, now: Date, options: TextOptions = {}): string {
  const { width } = options
  const { id, definition, matrixId, chunks } = job
  const parts = [
    `Job ${id}: ${definition}, ${matrixId}`,
    phaseText(job, now),
    ...(chunks.total === 0 ? [] : [`${bar(chunks)}  ${percent(chunks)}  ${doneOf(job)}`, kinds(chunks)]),
    ...(chunks.total === 0 ? [] : [paceText(job)]),
  ]
  return [
    parts.map((part) => cutTo(printable(part), width)).join('\n'),
    ...(job.working.length === 0 ? [] : [workingText(job, now, options)]),
    ...(job.failures.length === 0 ? [] : [failuresText(job, now, options)]),
  ].join('\n\n')
}

/** How far the job is, and why it does not proceed if it does not. */
function phaseText(job: JobProgress, now: Date): string {
  const { phase, attempts, errorMessage, nextCheckAt, lockedBy, createdAt, completedAt, failedAt } = job
  const since = `enqueued ${relative(createdAt, now)}`
  const nextTry = nextCheckAt > now ? `, next try ${relative(nextCheckAt, now)}` : ''
  const problem =
    attempts > 0 ? `; planning failed ${counted(attempts, 'time')}${because(errorMessage)}${nextTry}` : ''
  const texts: Readonly<Record<JobPhase, () => string>> = {
    waiting: () => `waiting to be planned, ${since}${problem}`,
    planning: () => `being planned by ${lockedBy ?? 'a runner'}, ${since}`,
    syncing: () => `syncing, ${since}`,
    completed: () => `completed ${ended(completedAt, createdAt, now)}`,
    failed: () => `failed ${ended(failedAt, createdAt, now)}${because(errorMessage)}`,
  }
  return texts[phase]()
}

function ended(at: Date | null, createdAt: Date, now: Date): string {
  if (at === null) return ''
  return `${relative(at, now)}, ${duration(at.getTime() - createdAt.getTime())} after it was enqueued`
}

function because(errorMessage: string | null): string {
  return errorMessage === null ? '' : `: ${errorMessage}`
}

function doneOf({ chunks, phase }: Pick<JobProgress, 'chunks' | 'phase'>): string {
  const known = phase === 'planning' || phase === 'waiting' ? ' known so far' : ''
  return `${grouped(chunks.done + chunks.skipped)} of ${counted(chunks.total, 'chunk')}${known}`
}

function kinds({ done, skipped, running, waiting, retrying, failed, dropped }: ChunkCounts): string {
  const tried = retrying === 0 ? '' : ` (${grouped(retrying)} after a failed attempt)`
  const known: readonly (readonly [number, string])[] = [
    [done, `${grouped(done)} synced`],
    [skipped, `${grouped(skipped)} skipped, fresh enough`],
    [running, `${grouped(running)} running`],
    [waiting, `${grouped(waiting)} waiting${tried}`],
    [failed, `${grouped(failed)} failed`],
    [dropped, `${grouped(dropped)} dropped`],
  ]
  return known.flatMap(([count, text]) => (count === 0 ? [] : [text])).join(' · ')
}

function paceText(job: JobProgress): string {
  const { rows, rowsPerSecond, chunksPerMinute, phase, chunks } = job
  const open = phase === 'syncing' && chunks.running + chunks.waiting > 0
  return [
    counted(rows, 'row'),
    ...(rowsPerSecond === undefined ? [] : [`${rate(rowsPerSecond)} rows/s`]),
    ...(chunksPerMinute === undefined ? [] : [`${rate(chunksPerMinute)} chunks/min`]),
    ...(open ? [timeLeftText(job)] : []),
  ].join(' · ')
}

function timeLeftText({ timeLeftMs }: JobProgress): string {
  return timeLeftMs === undefined ? 'time left unknown yet' : `about ${duration(timeLeftMs)} left`
}

/** Two digits that mean something. */
export function rate(perTime: number): string {
  return perTime >= 10 || perTime === 0
    ? grouped(Math.round(perTime))
    : String(Number(perTime.toPrecision(2)))
}

function workingText({ working, chunks }: JobProgress, now: Date, { width, most }: TextOptions): string {
  const listed = working.slice(0, most)
  const lines = listed.map((chunk) => [
    chunk.lockedBy ?? '',
    chunkName(chunk),
    String(chunk.attempts + 1),
    chunk.lockedUntil === null ? '' : relative(chunk.lockedUntil, now),
  ])
  const table = columns([['WORKER', 'CHUNK', 'ATTEMPT', 'LEASE ENDS'], ...lines], width)
  return andMore(table, chunks.running - listed.length)
}

function failuresText(job: JobProgress, now: Date, { width, most }: TextOptions): string {
  const { id, failures, chunks, phase } = job
  const listed = failures.slice(0, most)
  const lines = listed.map((chunk) => [
    chunkName(chunk),
    String(chunk.attempts),
    chunk.failedAt === null ? '' : relative(chunk.failedAt, now),
    chunk.errorMessage ?? '',
  ])
  const table = columns([['FAILED CHUNK', 'ATTEMPTS', 'GIVEN UP', 'WHY'], ...lines], width)
  const rest = andMore(table, chunks.failed - listed.length, `leasehold sync show ${id} --state failed`)
  if (phase !== 'failed') return rest
  return `${rest}\nTo sync the failed chunks again: \`leasehold sync replay ${id} --reason '…'\`.`
}

function andMore(table: string, count: number, command?: string): string {
  if (count <= 0) return table
  return `${table}\nand ${grouped(count)} more${command === undefined ? '' : `: \`${command}\``}`
}

/** The query says more than the hash. */
export function chunkName({ query, hash }: Pick<ChunkSummary, 'query' | 'hash'>): string {
  const text = typeof query === 'string' ? query : JSON.stringify(query)
  return text === '' ? hash.slice(0, 12) : text
}

/** One line for each job. */
export function jobsText({ jobs, more }: ProgressOfAll, width?: number): string {
  const lines = jobs.map((job) => [
    job.id,
    job.definition,
    job.matrixId,
    job.phase,
    shortProgress(job.chunks, width),
    grouped(job.rows),
    job.rowsPerSecond === undefined ? '-' : rate(job.rowsPerSecond),
    job.timeLeftMs === undefined ? '-' : duration(job.timeLeftMs),
    jobDetails(job),
  ])
  const table = columns(
    [['JOB', 'SYNC', 'MATRIX', 'PHASE', 'PROGRESS', 'ROWS', 'ROWS/S', 'ETA', 'DETAILS'], ...lines],
    width,
  )
  return more ? `${table}\nMore jobs are open: \`leasehold sync list\`.` : table
}

/** On a narrower terminal only the numbers are listed. */
const MIN_WIDTH_FOR_BARS = 110

/** `███░░░░░░░ 31 % of 2,000` */
export function shortProgress(chunks: ChunkCounts, width = Infinity): string {
  if (chunks.total === 0) return '-'
  const drawn = width < MIN_WIDTH_FOR_BARS ? '' : `${bar(chunks, SMALL_BAR)} `
  return `${drawn}${percent(chunks)} of ${grouped(chunks.total)}`
}

/** What matters most about a job. */
export function jobDetails(job: JobSummary & { readonly chunks: ChunkCounts }): string {
  const { phase, chunks, attempts, errorMessage } = job
  if (phase === 'failed') return errorMessage ?? ''
  if (phase === 'waiting' && attempts > 0)
    return `planning failed ${counted(attempts, 'time')}${because(errorMessage)}`
  return [
    ...(chunks.failed > 0 ? [`${counted(chunks.failed, 'chunk')} failed`] : []),
    ...(chunks.retrying > 0 ? [`${grouped(chunks.retrying)} waiting for a retry`] : []),
  ].join(', ')
}

/** Cuts every line to the width, because a line that wraps would be redrawn wrongly. */
export function fitted(text: string, width: number | undefined): string {
  return text
    .split('\n')
    .map((line) => cutTo(line, width))
    .join('\n')
}

function cutTo(text: string, width = Infinity): string {
  return text.length <= width ? text : `${text.slice(0, width - 1)}…`
}

/** What is unknown is null, so that every name is always there. */
export function jobJson(job: JobProgress): object {
  const { rowsPerSecond = null, chunksPerMinute = null, timeLeftMs = null } = job
  return { ...job, rowsPerSecond, chunksPerMinute, timeLeftMs }
}
