import { join } from 'node:path'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { useDatabase } from './database.ts'
import { removeDirectory, temporaryDirectory } from './directory.ts'
import { checkTypes, exampleCode, installPackages, parseBlocks, readPage, runPage } from './documents.ts'
import { projectFile } from './project-files.ts'

const { url } = useDatabase()
let directory = ''
beforeAll(async () => {
  directory = await temporaryDirectory()
  await installPackages(directory)
})
afterAll(async () => removeDirectory(directory))

/** A page with blocks, each written as its info string and its lines. */
function pageOf(name: string, ...blocks: readonly (readonly string[])[]): string {
  return `# ${name}\n\n${blocks.map(([info, ...lines]) => `\`\`\`${info}\n${lines.join('\n')}\n\`\`\`\n`).join('\n')}`
}

async function run(name: string, text: string): Promise<void> {
  return runPage(readPage(name, text), { directory, databaseUrl: url, port: 7999 })
}

it('a block without a language, with an unknown one, or not run without a reason, breaks the convention', () => {
  const text = `${pageOf('x', [''], ['cobol'], ['sh no-run'])}\n    indented\n\n- item\n\n    of a list\n`
  expect(readPage('docs/x.md', text).problems).toEqual([
    'docs/x.md:3: the code block has no language; use `text` for output',
    'docs/x.md:7: the language cobol is unknown to test/support/documents.ts',
    'docs/x.md:11: no-run needs a reason in the line before: <!-- no-run: reason -->',
    'docs/x.md:15: an indented code block; use a fence with a language',
  ])
  expect(readPage('x.md', '<!-- no-run: needs Docker -->\n```sh no-run\ndocker\n```\n').problems).toEqual([])
})

it('JSON, YAML, and code that is not run, must be correct', () => {
  const text = `${pageOf('x', ['json', '{'], ['yaml', 'a: b: c'])}<!-- no-run: because -->\n\`\`\`ts no-run\nconst = 1\n\`\`\`\n`
  expect(parseBlocks(readPage('x.md', text), new Set()).map((each) => each.slice(0, 7))).toEqual([
    'x.md:3:',
    'x.md:7:',
    'x.md:11',
  ])
})

it('TypeScript and JavaScript are checked against the package, unless they are parts of an example', async () => {
  const wrong = `import { startRuntime } from 'leasehold'\nawait startRuntime({ databaseURL: '' })`
  const pages = [
    readPage('wrong.md', pageOf('wrong', ['ts [src/a.ts]', wrong], ['js', wrong])),
    readPage(
      'right.md',
      pageOf('right', ['ts', await projectFile('examples/kernel.ts')], ['js', 'const of = (x) => x\nof(1)']),
    ),
  ]
  const errors = await checkTypes(pages, await exampleCode(), join(directory, 'types'))
  expect([...errors.keys()]).toEqual(['wrong.md'])
  expect(errors.get('wrong.md')).toMatchObject([
    expect.stringMatching(/^wrong\.md:5: .*databaseURL/),
    expect.stringMatching(/^wrong\.md:10: .*databaseURL/),
  ])
})

it('a page runs from top to bottom in one shell, with its files and its database', async () => {
  const text = pageOf(
    'steps',
    ['sql', 'create table of_page (id int)'],
    ['js [a/b.mjs]', `import pg from 'pg'`, 'process.stdout.write(`7400 ${typeof pg.Client}`)'],
    ['sh', 'cd a', 'sleep 600 &', 'export RESULT=$(node b.mjs)'],
    [
      'sh',
      'test "$RESULT" = "7999 function"',
      'kill -9 $!',
      'npm install leasehold pg',
      'npx leasehold --version',
    ],
    ['sql', 'drop table of_page'],
  )
  await expect(run('steps.md', text)).resolves.toBeUndefined()
})

it('a failing command, statement or missing output is reported with its page and line', async () => {
  await expect(run('a.md', pageOf('a', ['sh', 'echo before', 'false', 'true']))).rejects.toThrow(
    'a.md:3: failed with exit code 1\nbefore',
  )
  await expect(run('b.md', pageOf('b', ['sql', 'select 1'], ['sql', 'select x']))).rejects.toThrow(
    'b.md:7: column "x" does not exist',
  )
  await expect(run('c.md', pageOf('c', ['sh', 'npx cowsay']))).rejects.toThrow('cowsay is not installed')
})

it('what is expected may be written later, by a command in the background, which must end in an orderly way', async () => {
  const script = (end: string): string =>
    pageOf(
      'd',
      [
        'js [d.mjs]',
        `process.on('SIGTERM', () => process.exit(${end}))`,
        `setInterval(() => {}, 1000)`,
        `console.log('up')`,
      ],
      ['text'],
    ).concat('<!-- expect: up -->\n```sh\nnode d.mjs &\n```\n')
  await run('d.md', script('0'))
  await run('g.md', script('0').replace('<!--', '<!-- background -->\n<!--').replace(' &', ''))
  await expect(run('e.md', script('3'))).rejects.toThrow('ended with exit code 3')
  expect(readPage('f.md', pageOf('f', ['sh', 'node d.mjs &'])).problems).toEqual([
    'f.md:3: a command in the background needs <!-- expect: a part of its output --> in the line before',
  ])
})
