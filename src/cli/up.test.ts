import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Client } from 'pg'
import { expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { type TestProcess, useProcesses } from '../../test/support/processes.ts'
import { emptyDirectory } from '../../test/support/server.ts'
import { write } from '../../test/support/running-relay.ts'
import { openDatabase } from '../postgres/index.ts'

const { spawnNode } = useProcesses()
const { url } = useDatabase()
const project = new URL('../../', import.meta.url)

function leasehold(cwd: string, args: readonly string[], env: Record<string, string> = {}): TestProcess {
  const environment = { DATABASE_URL: '', LEASEHOLD_PORT: '0', LEASEHOLD_SECRET_KEY: '', ...env }
  return spawnNode('bin/leasehold.cjs', args, { cwd, env: environment })
}

async function result(
  process: TestProcess,
): Promise<{ code: number | null; stdout: string; stderr: string }> {
  const { code } = await process.exited
  return { code, ...process.output() }
}

it('beside the running demo the other commands find its server and its schema, by themselves and by its URL', async () => {
  const directory = await emptyDirectory()
  const demo = leasehold(directory, ['up', '--demo'])
  await demo.line((line) => Number(/published +(\d+)/.exec(line)?.[1] ?? 0) > 0)

  const status = await result(leasehold(directory, ['status']))
  expect(status).toMatchObject({ code: 0, stdout: expect.stringContaining('leasehold_demo.outbox') })
  expect(status.stderr).toContain('using the schema leasehold_demo, because only the demo runs here')

  const { stdout } = await result(leasehold(directory, ['url']))
  const client = new Client({ connectionString: stdout.trim() })
  await client.connect()
  expect((await client.query('select current_user as who')).rows).toEqual([{ who: 'postgres' }])
  await client.end()

  // From another directory, and with the secret key and the network of the embedded server.
  const elsewhere = await emptyDirectory()
  const create = ['webhooks', 'endpoints', 'create', 'http://127.0.0.1:9/hook', '--types', 'order.*']
  expect(await result(leasehold(elsewhere, create, { DATABASE_URL: stdout.trim() }))).toMatchObject({
    code: 0,
    stdout: expect.stringContaining('Created: endpoint'),
  })

  expect(await demo.kill('SIGINT')).toEqual({ code: 0, signal: null })
  const { password } = new URL(stdout)
  const printed = demo.output()
  expect(printed.stdout).toContain('postgresql://postgres:***@localhost:5432/leasehold')
  expect(printed.stdout + printed.stderr).not.toContain(password)
  expect(printed.stderr).toMatch(/stopping: .*in flight.* \(a second Ctrl-C quits at once\)/)

  for (const args of [['status'], ['work']]) {
    const stopped = await result(leasehold(elsewhere, args, { DATABASE_URL: stdout.trim() }))
    expect([stopped.code, stopped.stdout]).toEqual([1, ''])
    expect(stopped.stderr).toBe(
      `leasehold: SETTING_INVALID: databaseUrl (DATABASE_URL) is that of the embedded PostgreSQL in ${join(directory, '.leasehold')}, which does not run. Start it with \`leasehold up\`, or set DATABASE_URL or --database-url to a server of your own.\n`,
    )
  }
})

it('url does not take the URL of another server for that of the embedded one', async () => {
  const directory = await emptyDirectory()
  const printed = await result(leasehold(directory, ['url'], { DATABASE_URL: url }))
  expect([printed.code, printed.stdout, printed.stderr]).toEqual([
    1,
    '',
    `leasehold: SETTING_INVALID: No embedded PostgreSQL runs in ${join(directory, '.leasehold')}. Start it with \`leasehold up\` and without DATABASE_URL, which names another server, or name its directory with --directory.\n`,
  ])
})

it('while a publisher writes events to stdout, nothing else is printed there', async () => {
  const directory = await emptyDirectory()
  const module = (path: string): string => JSON.stringify(new URL(path, project).href)
  await writeFile(
    join(directory, 'leasehold.config.mjs'),
    `import { relay } from ${module('dist/outbox/index.js')}
    import { stdoutPublisher } from ${module('dist/outbox/publishers/stdout.js')}
    export default { workers: [relay({ publisher: stdoutPublisher() })] }`,
  )
  const db = openDatabase({ url })
  await write(db, null)
  await db.close()
  const process = leasehold(directory, ['up'], { DATABASE_URL: url })
  await process.line((line) => line.startsWith('{'))
  await expect.poll(() => process.output().stderr, { timeout: 60_000 }).toContain('Ctrl-C')
  expect(await process.kill('SIGINT')).toEqual({ code: 0, signal: null })
  const { stdout, stderr } = process.output()
  expect(stderr).toMatch(/Leasehold \S+ is up\./)
  for (const line of stdout.trim().split('\n')) expect(JSON.parse(line)).toHaveProperty('eventId')
})

it('a release of Node that is too old gets one line, before anything is imported', async () => {
  const old = `Object.defineProperty(process.versions, 'node', { value: '18.20.4' })`
  const process = spawnNode('bin/leasehold.cjs', ['status'], {
    env: { DATABASE_URL: url },
    execArgv: ['--import', `data:text/javascript,${encodeURIComponent(old)}`],
  })
  expect(await result(process)).toEqual({
    code: 1,
    stdout: '',
    stderr: `leasehold: needs Node 20.19 or later; this is Node 18.20.4. Install a newer one from https://nodejs.org.\n`,
  })
})

it('while the target of a publisher is down, /readyz?verbose and the log say that claiming is paused, and why', async () => {
  const directory = await emptyDirectory()
  await writeFile(
    join(directory, 'leasehold.config.mjs'),
    `import { relay } from ${JSON.stringify(new URL('dist/outbox/index.js', project).href)}
    const probe = async () => { throw new Error('no answer from amqp://me:s3cret@broker') }
    export default { workers: [relay({ publisher: { name: 'mine', publish: async () => {}, probe } })] }`,
  )
  const process = leasehold(directory, ['up', '--host', '0.0.0.0'], { DATABASE_URL: url })
  const http = (await process.line((line) => line.startsWith('  HTTP'))).trim().split(/\s+/)[1]
  const claiming = async (): Promise<unknown> => {
    const response = await fetch(`${http}/readyz?verbose`)
    return response.json()
  }
  await expect.poll(claiming, { timeout: 60_000 }).toMatchObject({
    status: 'ready',
    checks: expect.arrayContaining([
      {
        name: 'claiming',
        ok: true,
        detail: 'leasehold.outbox is paused (unhealthy: no answer from amqp://me:***@broker)',
      },
    ]),
  })
  expect(await process.kill('SIGINT')).toEqual({ code: 0, signal: null })
  expect(process.output().stderr).toMatch(/claiming is paused.*unhealthy|unhealthy.*claiming is paused/)
})
