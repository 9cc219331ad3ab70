/** The time, which moves on by itself: relative times and countdowns follow it. */
import { useEffect, useState } from 'preact/hooks'
import { createStore } from './store.ts'

/** How far the clock of the database is ahead of the clock of the browser. */
const offsetMs = createStore(0)

/** Sets the clock of the page by the time that an answer of the server carries. */
export function setDatabaseTime(now: string): void {
  const offset = Date.parse(now) - Date.now()
  // Smaller differences are how long the answer was under way.
  if (Math.abs(offset - offsetMs.get()) > 500) offsetMs.set(offset)
}

/** The same by the header of an answer, which has whole seconds: only a clock of the browser that is wrong is corrected. */
export function setServerDate(date: string | null): void {
  const time = date === null ? Number.NaN : Date.parse(date)
  if (Math.abs(time - databaseNow()) > 5_000) offsetMs.set(time - Date.now())
}

/** Now, by the clock of the database as far as it is known. */
export function databaseNow(): number {
  return Date.now() + offsetMs.get()
}

interface Ticker {
  readonly listeners: Set<() => void>
  timer: number | undefined
}

const tickers = new Map<number, Ticker>()

/** The time, every so many milliseconds. All who ask for the same interval share one timer. */
export function useNow(everyMs = 1_000): number {
  const [now, setNow] = useState(databaseNow)
  useEffect(() => {
    const ticker = tickers.get(everyMs) ?? { listeners: new Set(), timer: undefined }
    tickers.set(everyMs, ticker)
    const tick = (): void => setNow(databaseNow())
    ticker.listeners.add(tick)
    ticker.timer ??= window.setInterval(() => {
      if (!document.hidden) for (const listener of ticker.listeners) listener()
    }, everyMs)
    return () => {
      ticker.listeners.delete(tick)
      if (ticker.listeners.size > 0) return
      window.clearInterval(ticker.timer)
      ticker.timer = undefined
    }
  }, [everyMs])
  return now
}
