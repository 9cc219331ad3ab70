/**
 * The files of the package that are read while it runs, apart from its modules. Run from the sources, this module reads
 * them from the repository. In the package it is another one: the build replaces the compiled module by one that
 * contains these files (`scripts/package-files.mjs`), so that no bundler loses them.
 */
import { readFileSync } from 'node:fs'
import { readdir, readFile } from 'node:fs/promises'

/** A file that the dashboard's page loads, compressed with Brotli. */
export interface DashboardFile {
  readonly file: string
  readonly type: string
  readonly br: Uint8Array
}

/** What a thread runs: a file, or the text of a CommonJS script. */
export type ThreadScript =
  | { readonly script: URL; readonly eval: false }
  | { readonly script: string; readonly eval: true }

const ROOT = new URL('../', import.meta.url)

/** From where optional packages are resolved. */
export function packageLocation(): string {
  return import.meta.url
}

export function packageVersion(): string {
  // It is the package's own file, so its shape is known.
  return (JSON.parse(readFileSync(new URL('package.json', ROOT), 'utf8')) as { version: string }).version
}

/** The texts of `migrations/*.sql` and `migrations/citus/*.sql`, by their paths below `migrations`. */
export async function readSqlFiles(): Promise<Readonly<Record<string, string>>> {
  const directory = new URL('migrations/', ROOT)
  const names = (await readdir(directory, { recursive: true })).filter((name) => name.endsWith('.sql'))
  const read = names.map(async (name) => [name, await readFile(new URL(name, directory), 'utf8')] as const)
  return Object.fromEntries(await Promise.all(read))
}

/** `migrations/schema.json`. */
export async function readSchemaSnapshot(): Promise<unknown> {
  return JSON.parse(await readFile(new URL('migrations/schema.json', ROOT), 'utf8'))
}

/** Rejects where the dashboard was not built. */
export async function readDashboardFiles(): Promise<
  Readonly<Record<'app' | 'style' | 'icon', DashboardFile>>
> {
  const directory = new URL('dist/dashboard/', ROOT)
  // The build wrote it.
  const { app, style, icon } = JSON.parse(
    await readFile(new URL('assets.json', directory), 'utf8'),
  ) as Record<'app' | 'style' | 'icon', Omit<DashboardFile, 'br'>>
  const load = async (listed: typeof app): Promise<DashboardFile> => ({
    ...listed,
    br: await readFile(new URL(`${listed.file}.br`, directory)),
  })
  return { app: await load(app), style: await load(style), icon: await load(icon) }
}

/** The heartbeat's thread: the compiled file, because a thread takes JavaScript only. */
export async function heartbeatScript(): Promise<ThreadScript> {
  return Promise.resolve({ script: new URL('dist/worker/heartbeat/thread.js', ROOT), eval: false })
}
