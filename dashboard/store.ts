/** A value that components follow: who reads it with `useStore` is drawn again when it changes. */
import { useEffect, useState } from 'preact/hooks'

export interface Store<Value> {
  get(): Value
  set(value: Value): void
  subscribe(listener: () => void): () => void
}

export function createStore<Value>(first: Value): Store<Value> {
  let current = first
  const listeners = new Set<() => void>()
  return {
    get: () => current,
    set(value) {
      if (Object.is(value, current)) return
      current = value
      for (const listener of listeners) listener()
    },
    subscribe(listener) {
      listeners.add(listener)
      return () => listeners.delete(listener)
    },
  }
}

export function useStore<Value>(store: Store<Value>): Value {
  const [value, setValue] = useState(() => store.get())
  useEffect(() => {
    const update = (): void => setValue(() => store.get())
    // It may have changed between drawing and now.
    update()
    return store.subscribe(update)
  }, [store])
  return value
}

/** Remembers a choice of this person in this browser. Where the browser stores nothing, it lasts as long as the page. */
export function rememberedStore(name: string, first: string): Store<string> {
  const key = `leasehold:${name}`
  const store = createStore(read(key) ?? first)
  return {
    ...store,
    set(value) {
      store.set(value)
      try {
        localStorage.setItem(key, value)
      } catch {
        // A browser that stores nothing, such as one in a frame of another site.
      }
    },
  }
}

function read(key: string): string | undefined {
  try {
    return localStorage.getItem(key) ?? undefined
  } catch {
    return undefined
  }
}
