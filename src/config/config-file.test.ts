/** What Node says of a file that it cannot import. In real processes, because the test runner imports files in its own way. */
import { mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useConfigFiles } from '../../test/support/config-files.ts'
import { type TestProcess, useProcesses } from '../../test/support/processes.ts'

const { spawnNode } = useProcesses()
const database = useDatabase()
const { directoryWith } = useConfigFiles()

function leasehold(directory: string, args: readonly string[], environment = {}): TestProcess {
  const env = { DATABASE_URL: '', LEASEHOLD_SCHEMA: '', ...environment }
  return spawnNode('dist/cli/main.js', args, { cwd: directory, env })
}

/** One process loads all of them: a file is imported in it once. */
const loader = spawnNode('test/fixtures/settings.mjs')
afterAll(async () => {
  await loader.kill()
})

async function refusalOf(workingDirectory: string): Promise<string> {
  loader.send(workingDirectory)
  const isAnswer = (line: string): boolean => line.startsWith(`{"workingDirectory":"${workingDirectory}",`)
  // The fixture writes it.
  const { refusal } = JSON.parse(await loader.line(isAnswer)) as { readonly refusal: string | null }
  return refusal ?? 'it was accepted'
}

describe('a config file that cannot be imported', () => {
  it.each([
    [
      'throws',
      'const a = 1\nthrow new TypeError("no luck.")',
      'leasehold.config.mjs cannot be imported, because of leasehold.config.mjs:2: TypeError: no luck. Correct the file, or remove it.',
    ],
    [
      'is not JavaScript',
      'export default {\n  port: 1,,\n}',
      "leasehold.config.mjs cannot be imported, because of leasehold.config.mjs:2: SyntaxError: Unexpected token ','. Correct",
    ],
    [
      'throws an error with a cause',
      'throw new Error("no key.", { cause: new Error("KEY is empty!") })',
      'leasehold.config.mjs:1: Error: no key, caused by Error: KEY is empty! Correct',
    ],
    [
      'throws no error',
      'throw "nothing"',
      'leasehold.config.mjs cannot be imported: nothing. Correct the file',
    ],
    [
      'imports a package that is not installed',
      'const a = 1\nimport x from "no-such-package"',
      "because of leasehold.config.mjs:2: Error: Cannot find package 'no-such-package' imported from",
    ],
    [
      'imports a file that is not there',
      '\n\nimport x from "./nowhere.mjs"',
      'because of leasehold.config.mjs:3: Error: Cannot find module',
    ],
  ])('that %s: the message has the file, the line and the cause', async (_, text, expected) => {
    expect(await refusalOf(await directoryWith(text))).toContain(expected)
  })

  it('because a file that it imports fails: the message has that file and its line', async () => {
    const workingDirectory = await directoryWith('import "./handlers/emails.mjs"')
    await mkdir(join(workingDirectory, 'handlers'))
    await writeFile(join(workingDirectory, 'handlers', 'emails.mjs'), '\n\nnothing.there()')
    expect(await refusalOf(workingDirectory)).toContain(
      `because of ${join('handlers', 'emails.mjs')}:3: ReferenceError: nothing is not defined.`,
    )
  })

  it('because it declares a table wrongly: the message is that of the declaration', async () => {
    const declaration = new URL('../../dist/index.js', import.meta.url).href
    const text = `import { leaseTable } from '${declaration}'\n\nleaseTable({ table: 'emails' })`
    const message = await refusalOf(await directoryWith(text))
    expect(message).toContain('because of leasehold.config.mjs:3: The lease table emails is declared wrongly')
    expect(message).not.toMatch(/[.?!]{2}|LeaseholdError/)
  })
})

describe('a CommonJS config file', () => {
  it.each([
    ['leasehold.config.cjs', 'module.exports = { port: -7, workers: [] }'],
    ['leasehold.config.cjs', 'const workers = []; module.exports = { port: -7, workers }'],
    [
      'leasehold.config.cjs',
      'Object.defineProperty(exports, "__esModule", { value: true }); exports.default = { port: -7 }',
    ],
    ['leasehold.config.js', 'const workers = []; module.exports = { port: -7, workers }'],
  ])('%s is read: %s', async (name, text) => {
    expect(await refusalOf(await directoryWith(text, name))).toContain(`port (${name}:1) is -7`)
  })

  it('that is not JavaScript is refused with its line', async () => {
    const workingDirectory = await directoryWith('module.exports = {\n  port: 1,,\n}', 'leasehold.config.cjs')
    expect(await refusalOf(workingDirectory)).toContain('because of leasehold.config.cjs:2: SyntaxError')
  })

  it('that requires a file that is not there: the refusal is one line', async () => {
    const workingDirectory = await directoryWith("require('./missing.cjs')", 'leasehold.config.cjs')
    expect(await refusalOf(workingDirectory)).toMatch(
      /because of leasehold\.config\.cjs:1: Error: Cannot find module '\.\/missing\.cjs'\. Correct the file, or remove it\.$/,
    )
  })
})

describe('with a config file that cannot be imported', () => {
  const BROKEN = 'throw new Error("no luck")'

  it('a command that needs no workers works, and warns', async () => {
    const directory = await directoryWith(BROKEN)
    const environment = { DATABASE_URL: database.url }
    const migrated = leasehold(directory, ['migrate', '--schema', 'other'], environment)
    expect((await migrated.exited).code).toBe(0)
    const listed = leasehold(directory, ['status', '--schema', 'other', '--json'], environment)
    expect((await listed.exited).code).toBe(0)
    expect(JSON.parse(listed.output().stdout)).toBeTypeOf('object')
    for (const { output } of [migrated, listed])
      expect(output().stderr).toContain('The settings of leasehold.config.mjs do not apply: ')
  })

  it('migrate does not guess the schema, which the file may name', async () => {
    const environment = { DATABASE_URL: database.url }
    const process = leasehold(await directoryWith(BROKEN), ['migrate'], environment)
    expect((await process.exited).code).toBe(1)
    expect(process.output().stderr).toContain(
      'schema is not given, and leasehold.config.mjs, which may name one, cannot be read. Correct the file, or name the schema: --schema leasehold.',
    )
  })

  it('the workers do not start', async () => {
    const process = leasehold(await directoryWith(BROKEN), ['work'], { DATABASE_URL: database.url })
    expect((await process.exited).code).toBe(1)
    expect(process.output().stderr).toContain('Error: no luck. Correct the file')
  })
})

it.each(['json', 'mts', 'yaml'])(
  'a config file in another format, .%s, is refused, not ignored',
  async (ending) => {
    const workingDirectory = await directoryWith('{}', `leasehold.config.${ending}`)
    expect(await refusalOf(workingDirectory)).toBe(
      `leasehold.config.${ending} is not read: the config file is code. Write it as leasehold.config.mjs: \`export default { port: 7400 }\`, or remove it.`,
    )
  },
)
