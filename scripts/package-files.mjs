// Puts into dist what the package reads while it runs: builds the dashboard, and replaces dist/package-files.js by a
// module with the same exports that contains the files. Each is a module of its own, which is loaded when it is first
// needed. Bundlers follow these imports; they would not see that a file is read by its path.
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { rolldown } from 'rolldown'
import { buildDashboard } from './dashboard.mjs'

const ROOT = fileURLToPath(new URL('..', import.meta.url))
const TARGET = join(ROOT, 'dist', 'package-files')

async function sqlFiles() {
  const directory = join(ROOT, 'migrations')
  const names = (await readdir(directory, { recursive: true })).filter((name) => name.endsWith('.sql')).sort()
  const read = names.map(async (name) => [
    name.replaceAll('\\', '/'),
    await readFile(join(directory, name), 'utf8'),
  ])
  return Object.fromEntries(await Promise.all(read))
}

async function dashboardFiles() {
  await buildDashboard()
  const directory = join(ROOT, 'dist', 'dashboard')
  const listed = JSON.parse(await readFile(join(directory, 'assets.json'), 'utf8'))
  for (const each of Object.values(listed))
    each.br = (await readFile(join(directory, `${each.file}.br`))).toString('base64')
  return listed
}

/** The heartbeat's thread with everything that it imports, as one script that needs no file. */
async function heartbeatThread() {
  const bundle = await rolldown({
    input: join(ROOT, 'dist/worker/heartbeat/thread.js'),
    platform: 'node',
    // `pg` only asks for it where it is wanted.
    external: ['pg-native'],
  })
  const { output } = await bundle.generate({ format: 'cjs', minify: true, codeSplitting: false })
  await bundle.close()
  return output[0].code
}

async function write(name, value) {
  // As a string of JSON, which is parsed faster than the same value as JavaScript.
  const text =
    typeof value === 'string' ? JSON.stringify(value) : `JSON.parse(${JSON.stringify(JSON.stringify(value))})`
  await writeFile(join(TARGET, name), `export default ${text}\n`)
}

await rm(TARGET, { recursive: true, force: true })
await mkdir(TARGET, { recursive: true })
await write('sql.js', await sqlFiles())
await write('schema.js', JSON.parse(await readFile(join(ROOT, 'migrations/schema.json'), 'utf8')))
await write('dashboard.js', await dashboardFiles())
await write('heartbeat-thread.js', await heartbeatThread())

const { version } = JSON.parse(await readFile(join(ROOT, 'package.json'), 'utf8'))
await writeFile(
  join(ROOT, 'dist/package-files.js'),
  `// Written by the build, in place of the compiled src/package-files.ts: the files are contained in modules.
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'

/** From where optional packages are resolved. In a CommonJS bundle \`import.meta.url\` is missing. */
export function packageLocation() {
  return import.meta.url ?? pathToFileURL(process.argv[1] ?? join(process.cwd(), 'bundle.js')).href
}

export function packageVersion() {
  return ${JSON.stringify(version)}
}

export async function readSqlFiles() {
  return (await import('./package-files/sql.js')).default
}

export async function readSchemaSnapshot() {
  return (await import('./package-files/schema.js')).default
}

export async function readDashboardFiles() {
  const { default: files } = await import('./package-files/dashboard.js')
  const load = ({ file, type, br }) => ({ file, type, br: Buffer.from(br, 'base64') })
  return { app: load(files.app), style: load(files.style), icon: load(files.icon) }
}

/** The file; in a bundle, where there is none, a script that contains what the file imports. */
export async function heartbeatScript() {
  const script = new URL('./worker/heartbeat/thread.js', packageLocation())
  if (existsSync(script)) return { script, eval: false }
  return { script: (await import('./package-files/heartbeat-thread.js')).default, eval: true }
}
`,
)
