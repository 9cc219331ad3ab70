import type { WorkerSettings } from '../../src/worker/index.ts'
import type { Processes, TestProcess } from './processes.ts'
import { WORK_TABLE } from './work-table.ts'

/** What test/fixtures/worker.mjs understands. */
export interface WorkerConfig {
  readonly databaseUrl: string
  /** Events that are written out. */
  readonly tell?: readonly string[]
  readonly settings?: Partial<WorkerSettings>
  /** Passed on to startRuntime. */
  readonly runtime?: Readonly<Record<string, unknown>>
  /** Every run is written into public.runs. */
  readonly record?: boolean
  readonly heedsSignal?: boolean
  readonly blockMs?: number
  readonly shortMs?: number
  readonly wake?: boolean
  /** A line about `progress` after so many settled rows. */
  readonly progressEvery?: number
}

export interface WorkerProcess extends TestProcess {
  /** The first line about this that fits, written already or still to come. */
  heard(type: string, fits?: (line: Line) => boolean): Promise<Line>
  /** All lines about this so far. */
  all(type: string): Line[]
}

export interface Line {
  readonly type: string
  readonly [field: string]: unknown
}

export function startWorker({ spawnNode }: Processes, config: WorkerConfig): WorkerProcess {
  return told(spawnNode('test/fixtures/worker.mjs', [JSON.stringify({ table: WORK_TABLE, ...config })]))
}

/** A process that tells what happens as one JSON line each. */
export function told(started: TestProcess): WorkerProcess {
  return {
    ...started,
    heard: async (type, fits = () => true) => {
      const line = await started.line((text) => {
        const parsed = parse(text)
        return parsed?.type === type && fits(parsed)
      })
      return parse(line) ?? { type }
    },
    all: (type) =>
      started
        .output()
        .stdout.split('\n')
        .flatMap((text) => parse(text) ?? [])
        .filter((line) => line.type === type),
  }
}

function parse(text: string): Line | undefined {
  // The fixture writes nothing but such lines.
  return text.startsWith('{') ? (JSON.parse(text) as Line) : undefined
}
