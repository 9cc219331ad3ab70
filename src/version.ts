import { readFileSync } from 'node:fs'

/** The version in package.json, which is in the parent folder of both `src` and `dist`. */
export function packageVersion(): string {
  const text = readFileSync(new URL('../package.json', import.meta.url), 'utf8')
  // It is the package's own file, so its shape is known.
  return (JSON.parse(text) as { version: string }).version
}
