/** Which page is shown. The address is the whole state of a page: filters, sorting and position can be sent to a colleague. */
import type { ComponentChildren, JSX } from 'preact'
import { pagesPath } from './config.ts'
import { createStore, useStore } from './store.ts'

export interface Address {
  /** Below `pagesPath`: `/outbox`. */
  readonly path: string
  readonly query: URLSearchParams
}

function readAddress(): Address {
  const path = location.pathname.slice(pagesPath.length).replace(/\/+$/, '')
  return { path: path === '' ? '/' : path, query: new URLSearchParams(location.search) }
}

const address = createStore(readAddress())

addEventListener('popstate', () => address.set(readAddress()))

export function useAddress(): Address {
  return useStore(address)
}

export function currentAddress(): Address {
  return address.get()
}

/** The URL of a page. Undefined parameters are left out; arrays become repeated parameters. */
export type QueryValues = Readonly<Record<string, string | readonly string[] | undefined>>

export function hrefOf(path: string, query: QueryValues = {}): string {
  const parameters = new URLSearchParams()
  for (const [name, value] of Object.entries(query))
    for (const each of value === undefined ? [] : typeof value === 'string' ? [value] : value)
      if (each !== '') parameters.append(name, each)
  const search = parameters.toString()
  return `${pagesPath}${path}${search === '' ? '' : `?${search}`}`
}

export function navigate(href: string, { replace = false }: { readonly replace?: boolean } = {}): void {
  const before = address.get().path
  if (replace) history.replaceState(null, '', href)
  else history.pushState(null, '', href)
  address.set(readAddress())
  if (address.get().path === before) return
  scrollTo(0, 0)
  // Who uses a screen reader or the keyboard starts at the top of the new page.
  document.getElementById('main')?.focus({ preventScroll: true })
}

/** Changes parameters of this page's address, and leaves the others. */
export function setQuery(change: QueryValues, options: { readonly replace?: boolean } = {}): void {
  const { path, query } = address.get()
  const values: Record<string, string | readonly string[] | undefined> = {}
  for (const name of new Set(query.keys())) values[name] = query.getAll(name)
  navigate(hrefOf(path, { ...values, ...change }), options)
}

/** A link to another page of the dashboard. */
export function Link({
  href,
  children,
  ...rest
}: {
  readonly href: string
  readonly children?: ComponentChildren
  readonly class?: string
  readonly title?: string
  readonly 'aria-current'?: 'page' | undefined
}): JSX.Element {
  const follow = (event: MouseEvent): void => {
    if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return
    event.preventDefault()
    navigate(href)
  }
  return (
    <a href={href} onClick={follow} {...rest}>
      {children}
    </a>
  )
}

/** The values of a pattern such as `/outbox/events/:id`, or undefined if the path is another. */
export function match(pattern: string, path: string): Readonly<Record<string, string>> | undefined {
  const names = pattern.split('/')
  const parts = path.split('/')
  if (names.length !== parts.length) return undefined
  const values: Record<string, string> = {}
  for (const [index, name] of names.entries()) {
    const part = parts[index] ?? ''
    if (!name.startsWith(':')) {
      if (name !== part) return undefined
      continue
    }
    const value = decoded(part)
    if (value === undefined) return undefined
    values[name.slice(1)] = value
  }
  return values
}

function decoded(part: string): string | undefined {
  try {
    return decodeURIComponent(part)
  } catch {
    // No address of ours: `%E0%A4%A`.
    return undefined
  }
}
