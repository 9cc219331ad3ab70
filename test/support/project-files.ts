import { readdir, readFile } from 'node:fs/promises'
import { parse } from 'yaml'

/** Reads a file of the project. */
export async function projectFile(path: string): Promise<string> {
  return readFile(new URL(`../../${path}`, import.meta.url), 'utf8')
}

/** Folders that others write. A package linked into one of them leads back here, so a walk into it would not end. */
const NOT_OURS = new Set(['node_modules', '.next', 'generated'])

/** The paths of all files in a folder of the project and below it, without installed packages. */
export async function filesOf(folder: string): Promise<string[]> {
  const entries = await readdir(new URL(`../../${folder}`, import.meta.url), { withFileTypes: true })
  const found = await Promise.all(
    entries.map(async (entry) => {
      const path = `${folder}/${entry.name}`
      if (!entry.isDirectory()) return [path]
      return NOT_OURS.has(entry.name) ? [] : filesOf(path)
    }),
  )
  return found.flat()
}

/** The code blocks of one language that a reader of a Markdown page sees. */
export async function snippets(page: string, language: string): Promise<string[]> {
  const shown = (await projectFile(page)).replaceAll(/^<!-- setup\n.*?^-->$/gms, '')
  const blocks = shown.matchAll(/^```(\w+)[^\n]*\n(.*?)^```$/gms)
  return [...blocks].filter(([, of]) => of === language).map(([, , code = '']) => code.trim())
}

/** The parts of an example between `// begin` and `// end`, without their indentation. */
export async function marked(example: string): Promise<string[]> {
  const regions = (await projectFile(example)).matchAll(/^( *)\/\/ begin\n(.*?)^\1\/\/ end$/gms)
  return [...regions].map(([, indent = '', code = '']) =>
    code.replaceAll(new RegExp(`^${indent}`, 'gm'), '').trim(),
  )
}

export interface ComposeService {
  readonly command?: readonly string[]
  readonly image?: string
  readonly working_dir?: string
  readonly restart?: string
  readonly profiles?: readonly string[]
  readonly environment?: Readonly<Record<string, string>>
  readonly depends_on?: Readonly<Record<string, { readonly condition: string }>>
  readonly healthcheck?: { readonly test?: readonly string[]; readonly disable?: boolean }
  readonly deploy?: { readonly replicas: string }
  readonly stop_grace_period?: string
}

/** The services of compose.yaml, with anchors resolved and variables as they are written. */
export async function composeServices(): Promise<Record<string, ComposeService>> {
  // The file is our own, and the tests check the fields that they read.
  const file = parse(await projectFile('compose.yaml'), { merge: true }) as {
    readonly services: Record<string, ComposeService>
  }
  return file.services
}
