/**
 * What the server tells by itself: the overview, as server-sent events. Pages that show lists read them again when it says
 * that something has changed. Without the stream, for instance behind a proxy that does not pass it on, the page asks
 * every few seconds.
 */
import { useEffect } from 'preact/hooks'
import { answer, type Answer, API_PATH, api, send } from './api.ts'
import { addToHistory, history, type HistoryPoints, readHistory } from './history.ts'
import { createStore } from './store.ts'

export type Overview = Answer<'getOverview'>

/** `waiting`: nothing was heard yet, or the connection broke. */
export type LiveState = 'waiting' | 'live' | 'polling' | 'paused' | 'databaseAway'

export const overview = createStore<Overview | undefined>(undefined)
export const liveState = createStore<LiveState>('waiting')
/** Grows whenever something has changed. */
export const changes = createStore(0)

const POLL_EVERY_MS = 3_000
const RECONNECT_MS = [1_000, 2_000, 5_000, 10_000] as const
/** The server sends at least a comment every 15 s. */
const SILENT_MS = 40_000
/** After so many attempts without a single event the page asks by itself, and tries the stream now and then. */
const ATTEMPTS_BEFORE_POLLING = 3

let stop: AbortController | undefined
let lastEventId: string | undefined

/** Starts, or continues after a pause. */
export function startLive(options: { readonly isTenant: boolean }): void {
  stop?.abort()
  const controller = new AbortController()
  stop = controller
  liveState.set('waiting')
  // The overview concerns all tenants, so that those of one tenant ask.
  const run = options.isTenant ? pollChanges(controller.signal) : follow(controller.signal)
  run.catch(() => {
    if (!controller.signal.aborted) liveState.set('waiting')
  })
}

export function pauseLive(): void {
  stop?.abort()
  stop = undefined
  liveState.set('paused')
}

async function follow(signal: AbortSignal): Promise<void> {
  let attempts = 0
  while (!signal.aborted) {
    await untilShown(signal)
    const heard = await readStream(signal).catch(() => false)
    if (signal.aborted) return
    if (document.hidden) continue
    attempts = heard ? 0 : attempts + 1
    if (attempts >= ATTEMPTS_BEFORE_POLLING) await pollOverview(signal)
    else {
      liveState.set('waiting')
      await pause(RECONNECT_MS[attempts] ?? 10_000, signal)
    }
  }
}

/**
 * Returns whether anything came. The stream ends when nobody looks: without encryption a browser has six connections to a
 * server, and so many tabs would leave none for requests.
 */
async function readStream(signal: AbortSignal): Promise<boolean> {
  const connection = new AbortController()
  const cut = (): void => connection.abort()
  const cutIfHidden = (): void => {
    if (document.hidden) cut()
  }
  signal.addEventListener('abort', cut)
  document.addEventListener('visibilitychange', cutIfHidden)
  let silence = window.setTimeout(cut, SILENT_MS)
  let heard = false
  try {
    const headers = new Headers({ accept: 'text/event-stream' })
    if (lastEventId !== undefined) headers.set('last-event-id', lastEventId)
    const response = await send(new Request(`${API_PATH}/live`, { headers, signal: connection.signal }))
    if (!response.ok || response.body === null) return false
    // The points that were sent meanwhile.
    if (history.get().times.length > 0) readHistory(signal).catch(() => undefined)
    for await (const message of messagesOf(response.body)) {
      window.clearTimeout(silence)
      silence = window.setTimeout(cut, SILENT_MS)
      if (message.id !== undefined) lastEventId = message.id
      heard = true
      // Who has the newest overview already is sent none.
      if (liveState.get() === 'waiting') liveState.set('live')
      if (message.event === 'unavailable') liveState.set('databaseAway')
      // The server sends what GET /history and GET /overview answer.
      if (message.event === 'history') addToHistory(JSON.parse(message.data) as HistoryPoints)
      if (message.event !== 'overview') continue
      liveState.set('live')
      show(JSON.parse(message.data) as Overview)
    }
  } finally {
    window.clearTimeout(silence)
    signal.removeEventListener('abort', cut)
    document.removeEventListener('visibilitychange', cutIfHidden)
  }
  return heard
}

interface Message {
  readonly event: string
  readonly data: string
  readonly id: string | undefined
}

/** The messages of a stream of server-sent events. Comments count too: they show that the connection lives. */
async function* messagesOf(body: ReadableStream<Uint8Array>): AsyncGenerator<Message> {
  const reader = body.getReader()
  const decoder = new TextDecoder()
  let unread = ''
  try {
    for (;;) {
      const { done, value } = await reader.read()
      if (done) return
      const parts = (unread + decoder.decode(value, { stream: true })).split('\n\n')
      unread = parts.pop() ?? ''
      for (const part of parts) {
        const fields = new Map(part.split('\n').map(fieldOf))
        yield { event: fields.get('event') ?? '', data: fields.get('data') ?? '', id: fields.get('id') }
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined)
  }
}

function fieldOf(line: string): readonly [name: string, value: string] {
  const colon = line.indexOf(':')
  return [line.slice(0, colon), line.slice(colon + 1).trim()]
}

/** Asks for the overview for a minute, after which the stream is tried again. */
async function pollOverview(signal: AbortSignal): Promise<void> {
  for (let asked = 0; asked < 20 && !signal.aborted; asked += 1) {
    try {
      show(await answer(api.GET('/overview', { signal })))
      liveState.set('polling')
    } catch {
      if (!signal.aborted) liveState.set('waiting')
    }
    await pause(POLL_EVERY_MS, signal)
  }
}

async function pollChanges(signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    liveState.set('polling')
    changes.set(changes.get() + 1)
    await pause(POLL_EVERY_MS, signal)
  }
}

function show(next: Overview): void {
  overview.set(next)
  changes.set(changes.get() + 1)
}

/** Resolves when somebody looks at the page. */
async function untilShown(signal: AbortSignal): Promise<void> {
  if (!document.hidden) return
  await new Promise<void>((resolve) => {
    const done = (): void => {
      document.removeEventListener('visibilitychange', done)
      signal.removeEventListener('abort', done)
      resolve()
    }
    document.addEventListener('visibilitychange', done)
    signal.addEventListener('abort', done)
  })
}

async function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = window.setTimeout(done, ms)
    function done(): void {
      window.clearTimeout(timer)
      signal.removeEventListener('abort', done)
      resolve()
    }
    signal.addEventListener('abort', done)
  })
}

/** Calls back when something has changed, at most every so often, and not while nobody looks. */
export function useChanges(onChange: () => void, everyMs: number): void {
  useEffect(() => {
    let last = performance.now()
    let timer: number | undefined
    const fire = (): void => {
      timer = undefined
      if (document.hidden || liveState.get() === 'paused') return
      last = performance.now()
      onChange()
    }
    const changed = (): void => {
      timer ??= window.setTimeout(fire, Math.max(0, last + everyMs - performance.now()))
    }
    const unsubscribe = changes.subscribe(changed)
    document.addEventListener('visibilitychange', changed)
    return () => {
      unsubscribe()
      document.removeEventListener('visibilitychange', changed)
      window.clearTimeout(timer)
    }
  }, [onChange, everyMs])
}
