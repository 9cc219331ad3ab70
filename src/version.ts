import { readFileSync } from 'node:fs'

/** From package.json, which is one folder up from `src` and from `dist` alike. */
export function packageVersion(): string {
  const text = readFileSync(new URL('../package.json', import.meta.url), 'utf8')
  // The package's own file, shipped with it.
  return (JSON.parse(text) as { version: string }).version
}
