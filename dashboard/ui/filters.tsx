/** Filters of a list. They are in the address, so that a list can be sent to a colleague as it is. */
import type { JSX } from 'preact'
import { useEffect, useId, useLayoutEffect, useRef, useState } from 'preact/hooks'
import { useShortcuts } from '../keyboard.tsx'
import { beforeClick } from '../pointer.ts'
import { setQuery, useAddress } from '../router.tsx'

export type Filter =
  | { readonly kind: 'text'; readonly name: string; readonly label: string; readonly placeholder?: string }
  | { readonly kind: 'time'; readonly name: string; readonly label: string }
  | {
      readonly kind: 'choice'
      readonly name: string
      readonly label: string
      readonly options: readonly string[]
      /** What is shown instead of an option. */
      readonly labels?: Readonly<Record<string, string>>
      /** Whether several values can be chosen. */
      readonly several?: boolean
    }

/** The filters as the address has them. A name that is not in the address has no value. */
export function useFilterValues(filters: readonly Filter[]): {
  readonly one: (name: string) => string | undefined
  readonly all: (name: string) => string[] | undefined
  readonly cursor: string | undefined
  /** Stands for all of them, and for the position. */
  readonly key: string
  readonly isEmpty: boolean
} {
  const { query } = useAddress()
  const all = (name: string): string[] | undefined => {
    const values = query.getAll(name)
    return values.length === 0 ? undefined : values
  }
  return {
    one: (name) => all(name)?.[0],
    all,
    cursor: all('cursor')?.[0],
    key: query.toString(),
    isEmpty: filters.every(({ name }) => all(name) === undefined),
  }
}

export function FilterBar({ filters }: { readonly filters: readonly Filter[] }): JSX.Element {
  const values = useFilterValues(filters)
  const form = useRef<HTMLFormElement>(null)
  // On a phone the fields would fill the screen before the list begins.
  const [isOpen, setOpen] = useState(false)
  const hasFields = filters.some(({ kind }) => kind !== 'choice')
  const isUsed = filters.some(({ kind, name }) => kind !== 'choice' && values.all(name) !== undefined)
  useShortcuts({
    '/': { title: 'Search', act: () => form.current?.querySelector<HTMLInputElement>('input')?.focus() },
  })
  const change = (name: string, value: string | readonly string[] | undefined): void =>
    setQuery({ [name]: value, cursor: undefined }, { replace: true })
  const clear = (): void =>
    setQuery(Object.fromEntries([...filters.map(({ name }) => [name, undefined]), ['cursor', undefined]]))
  return (
    <form
      ref={form}
      class={isOpen || isUsed ? 'filters open' : 'filters'}
      role="search"
      onSubmit={(event) => event.preventDefault()}
    >
      {filters.map((filter) => {
        if (filter.kind === 'choice')
          return (
            <Choice
              key={filter.name}
              filter={filter}
              values={values.all(filter.name) ?? []}
              onChange={change}
            />
          )
        return (
          <Entry key={filter.name} filter={filter} value={values.one(filter.name) ?? ''} onChange={change} />
        )
      })}
      {!hasFields || isUsed ? null : (
        <button type="button" class="narrow-only" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
          {isOpen ? 'Fewer filters' : 'More filters'}
        </button>
      )}
      {values.isEmpty ? null : (
        <button type="button" class="quiet" onClick={clear}>
          Clear filters
        </button>
      )}
    </form>
  )
}

type OnChange = (name: string, value: string | readonly string[] | undefined) => void

function Choice({
  filter: { name, label, options, labels = {}, several = false },
  values,
  onChange,
}: {
  readonly filter: Extract<Filter, { kind: 'choice' }>
  readonly values: readonly string[]
  readonly onChange: OnChange
}): JSX.Element {
  const toggle = (option: string): void => {
    const isChosen = values.includes(option)
    if (several) onChange(name, isChosen ? values.filter((each) => each !== option) : [...values, option])
    else onChange(name, isChosen ? undefined : option)
  }
  return (
    <fieldset class="choice">
      <legend>{label}</legend>
      {options.map((option) => (
        <button
          key={option}
          type="button"
          class={values.includes(option) ? 'chip chosen' : 'chip'}
          aria-pressed={values.includes(option)}
          onClick={() => toggle(option)}
        >
          {labels[option] ?? option}
        </button>
      ))}
    </fieldset>
  )
}

/** How long nothing is typed before the list follows. */
const TYPING_MS = 400

function Entry({
  filter,
  value,
  onChange,
}: {
  readonly filter: Exclude<Filter, { kind: 'choice' }>
  readonly value: string
  readonly onChange: OnChange
}): JSX.Element {
  const id = useId()
  const { name, label, kind } = filter
  const shown = kind === 'time' ? toLocal(value) : value
  const [typed, setTyped] = useState(shown)
  /** What was typed, and is not in the address yet. */
  const unsent = useRef<string | undefined>(undefined)
  /** What this field has put into the address. */
  const sent = useRef(value)
  const timer = useRef<number | undefined>(undefined)
  const forget = (): void => {
    window.clearTimeout(timer.current)
    unsent.current = undefined
  }
  useEffect(() => {
    // What is being typed stays as it is, with a space at its end.
    if (value === sent.current) return
    // The address has changed otherwise: by a link, or by the button that clears the filters.
    sent.current = value
    forget()
    setTyped(shown)
  }, [value])
  // The next page has filters of its own. A field that is taken away loses the focus, and must have nothing to send then.
  useLayoutEffect(() => forget, [])
  const commit = (): void => {
    const text = unsent.current
    if (text === undefined) return
    forget()
    const next = kind === 'time' ? fromLocal(text) : text.trim()
    sent.current = next
    if (next !== value) onChange(name, next === '' ? undefined : next)
  }
  const type = (text: string): void => {
    forget()
    setTyped(text)
    unsent.current = text
    timer.current = window.setTimeout(() => beforeClick(commit), TYPING_MS)
  }
  const rest = {
    id,
    name,
    value: typed,
    autoComplete: 'off',
    onInput: (event: { readonly currentTarget: HTMLInputElement }) => type(event.currentTarget.value),
    onKeyDown: (event: KeyboardEvent) => event.key === 'Enter' && commit(),
    // A button that is pressed now is clicked when the address has what was typed.
    onBlur: () => beforeClick(commit),
  }
  return (
    <p class="field">
      <label htmlFor={id}>{label}</label>
      {kind === 'time' ? (
        <input type="datetime-local" step={1} {...rest} />
      ) : (
        <input type="search" placeholder={filter.placeholder} spellcheck={false} {...rest} />
      )}
    </p>
  )
}

/** The field of the browser has local times without a zone; the address has times with one. */
export function toLocal(value: string): string {
  const time = Date.parse(value)
  if (Number.isNaN(time)) return ''
  const local = new Date(time - new Date(time).getTimezoneOffset() * 60_000)
  return local.toISOString().slice(0, 19)
}

export function fromLocal(text: string): string {
  const time = Date.parse(text)
  return text === '' || Number.isNaN(time) ? '' : new Date(time).toISOString()
}
