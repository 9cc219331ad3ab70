/** Ctrl K: go to a page, or to a row by its number or event id, without the mouse. */
import type { JSX } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import { hrefOf, navigate } from './router.tsx'
import { ownTenant } from './session.ts'
import type { NavigationEntry } from './shell.tsx'
import { createStore, useStore } from './store.ts'
import { Dialog } from './ui/feedback.tsx'

const isOpen = createStore(false)

export function openPalette(): void {
  isOpen.set(true)
}

interface Entry {
  readonly title: string
  readonly href: string
}

export function Palette({ entries }: { readonly entries: readonly NavigationEntry[] }): JSX.Element | null {
  const open = useStore(isOpen)
  useEffect(() => {
    const listen = (event: KeyboardEvent): void => {
      if (event.key.toLowerCase() !== 'k' || !(event.ctrlKey || event.metaKey)) return
      event.preventDefault()
      isOpen.set(!isOpen.get())
    }
    addEventListener('keydown', listen)
    return () => removeEventListener('keydown', listen)
  }, [])
  return open ? <OpenPalette entries={entries} /> : null
}

function OpenPalette({ entries }: { readonly entries: readonly NavigationEntry[] }): JSX.Element {
  const [text, setText] = useState('')
  const [index, setIndex] = useState(0)
  const found = search(text.trim(), entries)
  const chosen = found[Math.min(index, found.length - 1)]
  const close = (): void => isOpen.set(false)
  const go = (entry: Entry | undefined): void => {
    close()
    if (entry !== undefined) navigate(entry.href)
  }
  const onKey = (event: KeyboardEvent): void => {
    if (event.key === 'ArrowDown') setIndex(Math.min(index + 1, found.length - 1))
    else if (event.key === 'ArrowUp') setIndex(Math.max(0, index - 1))
    else if (event.key === 'Enter') go(chosen)
    else return
    event.preventDefault()
  }
  return (
    <Dialog title="Go to" onClose={close} closesOutside>
      <input
        class="palette"
        aria-label="A page, or the number or event id of a row"
        placeholder={ownTenant() === null ? 'outbox, dead events, 4711…' : 'failed deliveries, 4711…'}
        value={text}
        autoFocus
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-activedescendant={chosen === undefined ? undefined : `palette-${found.indexOf(chosen)}`}
        onInput={(event) => {
          setText(event.currentTarget.value)
          setIndex(0)
        }}
        onKeyDown={onKey}
      />
      <ul id="palette-list" class="palette-list" role="listbox" aria-label="Pages and rows">
        {found.map((entry, position) => (
          <li
            key={entry.href}
            id={`palette-${position}`}
            role="option"
            aria-selected={entry === chosen}
            onClick={() => go(entry)}
          >
            {entry.title}
          </li>
        ))}
      </ul>
    </Dialog>
  )
}

const ROW = /^(\d{1,19}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$/i

function search(text: string, entries: readonly NavigationEntry[]): readonly Entry[] {
  const isTenant = ownTenant() !== null
  const lists: readonly Entry[] = [
    { title: 'Webhooks: deliveries', href: hrefOf('/webhooks/deliveries') },
    { title: 'Webhooks: failed deliveries', href: hrefOf('/webhooks/deliveries', { status: 'failed' }) },
    ...(isTenant
      ? []
      : [
          { title: 'Outbox: dead events', href: hrefOf('/outbox', { status: 'DEAD' }) },
          { title: 'Outbox: pending events', href: hrefOf('/outbox', { status: 'PENDING' }) },
          { title: 'Outbox: keys that are held up', href: hrefOf('/outbox/keys') },
          { title: 'Sync: failed jobs', href: hrefOf('/sync', { states: 'FAILED' }) },
        ]),
  ]
  const rows: readonly Entry[] = ROW.test(text)
    ? [
        ...(isTenant ? [] : [{ title: `Event ${text}`, href: hrefOf(`/outbox/events/${text}`) }]),
        { title: `Delivery ${text}`, href: hrefOf(`/webhooks/deliveries/${text}`) },
        ...(isTenant || !/^\d+$/.test(text)
          ? []
          : [{ title: `Job ${text}`, href: hrefOf(`/sync/jobs/${text}`) }]),
      ]
    : []
  const pages = entries.map(({ title, path }) => ({ title, href: hrefOf(path) }))
  const words = text.toLowerCase().split(/\s+/)
  return [
    ...rows,
    ...[...pages, ...lists].filter(({ title }) => words.every((word) => title.toLowerCase().includes(word))),
  ].slice(0, 12)
}
