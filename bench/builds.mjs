// A build of Leasehold: the root of a checkout in which `npm run build` was run.
import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'

/** Refuses a directory that is not a built checkout, before anything is started. */
export function checkBuild(root) {
  const path = resolve(root)
  if (!existsSync(resolve(path, 'package.json'))) throw new Error(`${path} is not the root of a checkout`)
  if (!existsSync(entryOf(path, '.'))) throw new Error(`${path} is not built: run \`npm run build\` there`)
  return path
}

/** Loads a module by its public name (`.`, `./outbox`), so that a build may arrange its files as it likes. */
export async function loadFrom(root, name) {
  return import(pathToFileURL(entryOf(root, name)).href)
}

export function entryOf(root, name) {
  const { exports } = JSON.parse(readFileSync(resolve(root, 'package.json'), 'utf8'))
  if (exports[name] === undefined) throw new Error(`the build in ${root} does not export ${name}`)
  return resolve(root, exports[name].default)
}

/** The commit of a build, with `+` when the checkout has changes; undefined outside a repository. */
export function commitOf(root) {
  const git = (...args) =>
    execFileSync('git', ['-C', root, ...args], {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
    }).trim()
  try {
    const changed = git('--no-optional-locks', 'status', '--porcelain', '--untracked-files=no') !== ''
    return git('rev-parse', '--short', 'HEAD') + (changed ? '+' : '')
  } catch {
    return undefined
  }
}
