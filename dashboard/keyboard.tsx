/** Shortcuts: components say which keys they take, and `?` lists those that work at the moment. */
import type { JSX } from 'preact'
import { useLayoutEffect, useRef } from 'preact/hooks'
import { createStore, useStore } from './store.ts'
import { Dialog } from './ui/feedback.tsx'

export interface Shortcut {
  readonly title: string
  readonly act: () => unknown
}

/** By the key, as `KeyboardEvent.key` names it; `g o` is one after the other. */
export type Shortcuts = Readonly<Record<string, Shortcut>>

interface Layer {
  current: Shortcuts
}

/** The one that was added last wins. */
const layers = createStore<readonly Layer[]>([])
const isHelpOpen = createStore(false)

export function useShortcuts(shortcuts: Shortcuts): void {
  const layer = useRef<Layer>({ current: shortcuts })
  layer.current.current = shortcuts
  // A layout effect: what a person can see has its shortcuts already.
  useLayoutEffect(() => {
    const added = layer.current
    layers.set([...layers.get(), added])
    return () => layers.set(layers.get().filter((other) => other !== added))
  }, [])
}

function find(keys: string): Shortcut | undefined {
  return layers.get().findLast(({ current }) => current[keys] !== undefined)?.current[keys]
}

const SEQUENCE_MS = 1_000
let first: { readonly key: string; readonly at: number } | undefined

addEventListener('keydown', (event) => {
  if (event.defaultPrevented || event.metaKey || event.ctrlKey || event.altKey || isTyping(event)) return
  const isSecond = first !== undefined && performance.now() - first.at < SEQUENCE_MS
  const both = isSecond ? find(`${first?.key} ${event.key}`) : undefined
  first = both === undefined ? { key: event.key, at: performance.now() } : undefined
  const shortcut = both ?? find(event.key)
  if (shortcut === undefined) return
  event.preventDefault()
  shortcut.act()
})

/** Keys go to a field, or to a dialog, that has the focus. */
function isTyping({ target, key }: KeyboardEvent): boolean {
  if (document.querySelector('dialog[open]') !== null) return true
  if (!(target instanceof HTMLElement)) return false
  if (target.closest('input:not([type=checkbox]), textarea, select, [contenteditable]') !== null) return true
  // Enter and the space bar press the button or follow the link that has the focus.
  return (key === 'Enter' || key === ' ') && target.closest('button, a, summary, input') !== null
}

/** What `?` shows. */
export function ShortcutHelp(): JSX.Element | null {
  const isOpen = useStore(isHelpOpen)
  const added = useStore(layers)
  useShortcuts({ '?': { title: 'List the shortcuts', act: () => isHelpOpen.set(true) } })
  if (!isOpen) return null
  const all = new Map<string, string>()
  for (const { current } of added) for (const [key, { title }] of Object.entries(current)) all.set(key, title)
  return (
    <Dialog title="Shortcuts" onClose={() => isHelpOpen.set(false)} closesOutside>
      <dl class="shortcuts">
        <div>
          <dt>
            <kbd>Ctrl</kbd> <kbd>K</kbd>
          </dt>
          <dd>Go to a page, a row, or do something</dd>
        </div>
        {[...all].map(([keys, title]) => (
          <div key={keys}>
            <dt>
              {keys.split(' ').map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{title}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  )
}

export function openHelp(): void {
  isHelpOpen.set(true)
}
