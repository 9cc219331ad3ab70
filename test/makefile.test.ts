import { execFile } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { expect, it } from 'vitest'
import { composeServices, projectFile } from './support/project-files.ts'

const run = promisify(execFile)
const root = fileURLToPath(new URL('..', import.meta.url))

/** What `make` would run, or prints where the recipe says so. */
async function make(...args: readonly string[]): Promise<string> {
  return (await run('make', ['--no-print-directory', ...args], { cwd: root })).stdout.trim()
}

/** The table in the guide: target → command. */
async function documented(): Promise<[string, string][]> {
  const rows = (await projectFile('docs/guides/reconcile.md')).matchAll(
    /^\| `make (\w+)[^|]*` \| `([^|]+)` \|/gm,
  )
  return [...rows].map(([, target = '', command = '']) => [target, command])
}

it('REC-17: the Makefile has targets to build, start, scale and stop the services, each with the command that the guide shows', async () => {
  const table = await documented()
  expect(table.map(([target]) => target)).toEqual(['build', 'start', 'scale', 'stop', 'processes'])
  for (const [target, command] of table) expect(await make('--dry-run', target), target).toBe(command)
})

it('REC-17: the commands of the README have targets', async () => {
  const readme = await projectFile('README.md')
  for (const target of ['demo', 'test']) expect(readme).toContain(`\`${await make('--dry-run', target)}\``)
})

it('REC-17: make without a target changes nothing and lists the targets', async () => {
  expect((await make()).split('\n')).toEqual(
    ['help', 'demo', 'test', 'build', 'start', 'scale', 'stop', 'processes'].map(
      (target) => `make ${target}`,
    ),
  )
})

it('REC-17: the number of reconcilers that is given to make reaches the services, and make sets none itself', async () => {
  const [, variable] =
    /^\$\{(\w+):-(\d+)\}$/.exec((await composeServices())['reconciler']?.deploy?.replicas ?? '') ?? []
  // A recipe of the test, run with the variables of the Makefile. What is in the environment wins over .env.
  const shown = async (...given: readonly string[]): Promise<string> =>
    make('--eval', `shown: ; @echo $\${${variable}-of .env}`, 'shown', ...given)
  expect(await shown()).toBe('of .env')
  expect(await shown('RECONCILERS=5')).toBe('5')
})

it('REC-17: make stop also stops the services of profiles', async () => {
  const [, profile = ''] = /--profile (\w+) down$/.exec(await make('--dry-run', 'stop')) ?? []
  for (const [name, { profiles = [profile] }] of Object.entries(await composeServices()))
    expect(profiles, name).toContain(profile)
})

it('the passwords of a deployment are not committed, and an example names all of them', async () => {
  expect((await projectFile('.gitignore')).split('\n')).toContain('.env')
  const named = (text: string, pattern: RegExp): Set<string> =>
    new Set([...text.matchAll(pattern)].map(([, name = '']) => name))
  const wanted = named(await projectFile('compose.yaml'), /\$\{(\w+(?:_PASSWORD|SECRET_KEY))[:}]/g)
  expect(named(await projectFile('.env.example'), /^(\w+)=$/gm)).toEqual(wanted)
})
