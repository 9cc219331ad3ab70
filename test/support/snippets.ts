import { readFile } from 'node:fs/promises'

/** A file of the project. */
export async function projectFile(path: string): Promise<string> {
  return readFile(new URL(`../../${path}`, import.meta.url), 'utf8')
}

/** The code blocks of a language in a page. */
export async function snippets(page: string, language: string): Promise<string[]> {
  const blocks = (await projectFile(page)).matchAll(/^```(\w+)\n(.*?)^```$/gms)
  return [...blocks].filter(([, of]) => of === language).map(([, , code = '']) => code.trim())
}

/** What an example has between its marks, as it looks outside the function it stands in. */
export async function marked(example: string): Promise<string[]> {
  const regions = (await projectFile(example)).matchAll(/^( *)\/\/ begin\n(.*?)^\1\/\/ end$/gms)
  return [...regions].map(([, indent = '', code = '']) =>
    code.replaceAll(new RegExp(`^${indent}`, 'gm'), '').trim(),
  )
}
