/** Reading from the API in a component: what is known so far, whether it is being read, and what went wrong. */
import { useCallback, useEffect, useRef, useState } from 'preact/hooks'
import { ApiProblem } from './api.ts'
import { liveState, useChanges } from './live.ts'
import { afterClick } from './pointer.ts'

export interface Query<Data> {
  /** What was read last, also while it is being read again. */
  readonly data: Data | undefined
  readonly problem: ApiProblem | undefined
  readonly isReading: boolean
  /** Reads again. */
  readonly refresh: () => void
}

const LIVE_EVERY_MS = 2_000

export interface QueryOptions {
  readonly isLive?: boolean
  /** How often it is read at most. */
  readonly everyMs?: number
  /** Reads every `everyMs`, for what changes without a word of the server: a lease that is renewed. */
  readonly polls?: boolean
}

/**
 * Reads when the component appears, when `key` changes, and when something has changed on the server. An older answer
 * never replaces a newer one. `key` stands for everything that `read` depends on.
 */
export function useQuery<Data>(
  key: string,
  read: (signal: AbortSignal) => Promise<Data>,
  { isLive = true, everyMs = LIVE_EVERY_MS, polls = false }: QueryOptions = {},
): Query<Data> {
  const [state, setState] = useState<Known<Data>>({ key, data: undefined, problem: undefined })
  const [isReading, setReading] = useState(true)
  const current = useRef({ key, read })
  current.current = { key, read }
  const running = useRef<AbortController | undefined>(undefined)

  const start = useCallback((cause: 'asked' | 'changed') => {
    // What has changed meanwhile is read with the next change.
    if (cause === 'changed' && running.current !== undefined) return
    running.current?.abort()
    const controller = new AbortController()
    running.current = controller
    const { key: asked, read: readNow } = current.current
    setReading(true)
    readInto(controller, asked, readNow, setState)
      .then((isShown) => {
        if (!isShown) return undefined
        running.current = undefined
        return setReading(false)
      })
      .catch(() => undefined)
  }, [])

  useEffect(() => {
    start('asked')
    return () => {
      running.current?.abort()
      running.current = undefined
    }
  }, [key])
  // What was not answered is read again by itself, also where nothing else is.
  const isUnanswered = state.problem !== undefined && mayPass(state.problem)
  const onChange = useCallback(() => {
    if (isLive || isUnanswered) start('changed')
  }, [isLive, isUnanswered])
  useChanges(onChange, everyMs)
  useEffect(() => {
    if (!polls) return undefined
    const timer = window.setInterval(() => {
      if (!document.hidden && liveState.get() !== 'paused') start('changed')
    }, everyMs)
    return () => window.clearInterval(timer)
  }, [polls, everyMs])
  const refresh = useCallback(() => start('asked'), [])

  // What was read for another key is not shown under this one.
  const isOfKey = state.key === key
  return {
    data: isOfKey ? state.data : undefined,
    problem: isOfKey ? state.problem : undefined,
    isReading: isReading || !isOfKey,
    refresh,
  }
}

/** Whether the same request may be answered later. */
function mayPass({ status }: ApiProblem): boolean {
  return status === 0 || status === 429 || status >= 500
}

/** What is known under a key. */
interface Known<Data> {
  readonly key: string
  readonly data: Data | undefined
  readonly problem: ApiProblem | undefined
}

/** Reads, and shows what was read unless that was ended meanwhile. Returns whether it is shown. */
async function readInto<Data>(
  { signal }: AbortController,
  key: string,
  read: (signal: AbortSignal) => Promise<Data>,
  show: (change: (before: Known<Data>) => Known<Data>) => void,
): Promise<boolean> {
  try {
    const data = await read(signal)
    await afterClick()
    if (!signal.aborted) show(() => ({ key, data, problem: undefined }))
  } catch (error) {
    if (signal.aborted) return false
    const problem = error instanceof ApiProblem ? error : unexpected(error)
    // What was read before stays on the page, below the problem.
    show((before) => ({ key, data: before.key === key ? before.data : undefined, problem }))
  }
  return !signal.aborted
}

function unexpected(error: unknown): ApiProblem {
  // An error of this page: the console has it.
  setTimeout(() => {
    throw error
  })
  return new ApiProblem({
    status: 0,
    code: 'PAGE_FAILED',
    detail: 'This page has an error.',
    remedy: 'Load it again.',
  })
}

/** Nobody repeats a change by itself, and one that was not answered may have been made. */
function ofChange(problem: ApiProblem): ApiProblem {
  if (problem.status !== 0) return problem
  return new ApiProblem({
    status: 0,
    code: problem.code,
    detail: problem.message,
    remedy: 'It may have been done all the same: look, before you try again.',
  })
}

/** Runs a change: at most one at a time, with its problem. */
export function useAction<Arguments extends readonly unknown[]>(
  act: (...given: Arguments) => Promise<void>,
): {
  readonly run: (...given: Arguments) => void
  readonly isRunning: boolean
  readonly problem: ApiProblem | undefined
  readonly forget: () => void
} {
  const [isRunning, setRunning] = useState(false)
  const [problem, setProblem] = useState<ApiProblem>()
  const latest = useRef(act)
  latest.current = act
  const busy = useRef(false)
  const run = useCallback((...given: Arguments) => {
    if (busy.current) return
    busy.current = true
    setRunning(true)
    setProblem(undefined)
    latest
      .current(...given)
      .catch((error: unknown) =>
        setProblem(error instanceof ApiProblem ? ofChange(error) : unexpected(error)),
      )
      .finally(() => {
        busy.current = false
        setRunning(false)
      })
      .catch(() => undefined)
  }, [])
  return { run, isRunning, problem, forget: useCallback(() => setProblem(undefined), []) }
}
