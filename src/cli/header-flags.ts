import { wrong } from './flag-values.ts'

/** What `--header name=value`, which can be repeated, comes to. */
export function headersOf(given: readonly string[]): Record<string, string> {
  return Object.fromEntries(
    given.map((header) => {
      const [, name = '', value = ''] = /^([^=]+)=(.*)$/s.exec(header) ?? []
      if (name.trim() === '') throw wrong('header', header, 'give it as name=value.')
      return [name.trim(), value]
    }),
  )
}

/** For commander: an option that can be repeated is a list. */
export function collect(value: string, before: unknown): readonly string[] {
  return [...(Array.isArray(before) ? before.map(String) : []), value]
}
