import { randomBytes } from 'node:crypto'
import { readdir } from 'node:fs/promises'
import { Client, Pool } from 'pg'
import { afterAll, describe, expect, inject, it, onTestFinished } from 'vitest'
import { withAdmin, withDatabase } from '../../test/support/admin.ts'
import { removeDirectory, temporaryDirectory } from '../../test/support/directory.ts'
import { useProcesses, type TestProcess } from '../../test/support/processes.ts'
import { projectFile } from '../../test/support/project-files.ts'
import { openDatabase } from '../postgres/database.ts'
import { testDatabase, type PreparedDatabase, type TestDatabaseOptions } from './index.ts'

const url = inject('clusterUrl')
const { spawnNode } = useProcesses()

/** The templates stay on a server that the tests did not start. */
afterAll(async () =>
  withAdmin(url, async (admin) => {
    const { rows } = await admin.query<{ datname: string }>(
      `select datname from pg_database where datname ~ '^leasehold_template_'`,
    )
    for (const { datname } of rows) {
      await admin.query(`alter database ${datname} with is_template false`)
      await admin.query(`drop database ${datname} with (force)`)
    }
  }),
)

async function databaseExists(name: string): Promise<boolean> {
  const client = new Client({ connectionString: url })
  await client.connect()
  const { rowCount } = await client.query('select from pg_database where datname = $1', [name])
  await client.end()
  return rowCount === 1
}

/** A database as another project would name it in `TEST_DATABASE_URL`. */
async function administrationDatabase(): Promise<string> {
  const name = `project_${randomBytes(6).toString('hex')}`
  await withAdmin(url, async (admin) => void (await admin.query(`create database ${name}`)))
  onTestFinished(async () =>
    withAdmin(url, async (admin) => void (await admin.query(`drop database ${name} with (force)`))),
  )
  return withDatabase(url, name)
}

async function create(options: TestDatabaseOptions = {}) {
  const db = await testDatabase({ url, ...options })
  onTestFinished(async () => db.close())
  return db
}

describe('a test database', () => {
  it('has the schema of Leasehold, and exists until it is closed', async () => {
    const db = await create()
    await db.query({ text: `select leasehold.enqueue('a', '{}')` })
    await db.close()
    await db.close()
    expect(await databaseExists(db.name)).toBe(false)
    const empty = await create({ migrate: false })
    await expect(empty.query({ text: 'select from leasehold.outbox' })).rejects.toMatchObject({
      code: '42P01',
    })
  })

  it('is emptied by reset, apart from the tables that prepare has filled', async () => {
    const db = await create({
      prepare: async (prepared) => {
        await prepared.query({
          text: `create table countries (code text primary key); insert into countries values ('CH');
            create table orders (id int generated always as identity, country text references countries)`,
        })
      },
    })
    const add = `insert into orders (country) values ('CH') returning id`
    await db.query({ text: add })
    await db.query({ text: `select leasehold.enqueue('a', '{}')` })
    await db.reset()
    expect((await db.query({ text: 'select * from leasehold.outbox' })).rows).toEqual([])
    expect((await db.query({ text: 'select * from countries' })).rows).toEqual([{ code: 'CH' }])
    expect((await db.query({ text: add })).rows).toEqual([{ id: 1 }])
  })

  it('is a copy of the first one with the same prepareKey', async () => {
    let calls = 0
    const options = {
      prepareKey: 'orders of version 1',
      prepare: async (db: { query: Awaited<ReturnType<typeof create>>['query'] }) => {
        calls += 1
        await db.query({ text: 'create table orders (id int)' })
      },
    }
    for (let n = 0; n < 2; n += 1) await (await create(options)).query({ text: 'select from orders' })
    expect(calls).toBe(1)
  })

  it('is not closed while something is connected to it, and is dropped later', async () => {
    const db = await testDatabase({ url })
    const pool = new Pool({ connectionString: db.url, application_name: 'the shop' })
    // The next test database drops what was left.
    pool.on('error', () => {})
    await pool.query('select 7')
    await expect(db.close()).rejects.toMatchObject({
      code: 'STATE_CONFLICT',
      message: expect.stringContaining('1 open connections: the shop (idle): select 7.'),
    })
    expect(await databaseExists(db.name)).toBe(true)
    await create({ migrate: false })
    expect(await databaseExists(db.name)).toBe(false)
    await pool.end()
  })

  it('is not dropped by a project that uses another database of the server, nor is its template', async () => {
    const [first, second] = await Promise.all([administrationDatabase(), administrationDatabase()])
    const db = await create({ url: first, migrate: false })
    const prepare = async (prepared: PreparedDatabase) =>
      void (await prepared.query({ text: 'create table orders ()' }))
    const options = { migrate: false, prepareKey: 'orders of two projects' }
    const copy = await create({
      ...options,
      url: first,
      // While the first project prepares its template, the second does the same.
      prepare: async (prepared) => {
        await (await testDatabase({ ...options, url: second, prepare })).close()
        await prepare(prepared)
      },
    })
    expect((await copy.query({ text: 'select from orders' })).rows).toEqual([])
    expect(await databaseExists(db.name)).toBe(true)
  })

  it('is refused with the error of prepare where prepare lacks a privilege', async () => {
    const denied = Object.assign(new Error('permission denied for table orders'), { code: '42501' })
    const prepare = async () => Promise.reject(denied)
    await expect(testDatabase({ url, migrate: false, prepare })).rejects.toBe(denied)
  })

  it('is refused with the reason where the role may not create databases', async () => {
    const role = `plain_tester_${randomBytes(3).toString('hex')}`
    await withAdmin(url, async (admin) => {
      await admin.query(`create role ${role} login password 'plain'`)
    })
    const plain = new URL(url)
    plain.username = role
    plain.password = 'plain'
    try {
      await expect(testDatabase({ url: plain.href, migrate: false })).rejects.toMatchObject({
        code: 'PERMISSION_DENIED',
        remedy: 'Use a role that may: ALTER ROLE … CREATEDB.',
      })
    } finally {
      await withAdmin(url, async (admin) => void (await admin.query(`drop role ${role}`)))
    }
  })
})

interface First {
  readonly url: string
  readonly name: string
}

describe('the shared server', () => {
  /** A project of its own, whose server is in a directory of its own. */
  async function project() {
    const directory = await temporaryDirectory()
    onTestFinished(async () => removeDirectory(directory))
    const env = { TMPDIR: directory, TEST_DATABASE_URL: '' }
    return { directory, start: () => spawnNode('test/fixtures/test-database.mjs', [], { env }) }
  }

  async function said<Line>(process: TestProcess, field: string): Promise<Line> {
    // It is what the fixture prints.
    return JSON.parse(await process.line((line) => line.includes(`"${field}"`))) as Line
  }

  it('is started once by two test processes at the same time, and ends when the last one has gone, though one was killed', async () => {
    const { directory, start } = await project()
    const [killed, other] = [start(), start()]
    const [first, second] = await Promise.all([said<First>(killed, 'url'), said<First>(other, 'url')])
    expect(new URL(first.url).port).toBe(new URL(second.url).port)
    expect(first.name).not.toBe(second.name)

    await killed.kill('SIGKILL')
    // The databases of a process that was killed are dropped when the next one is created.
    let asked = 0
    await expect
      .poll(async () => {
        asked += 1
        other.send(`create-${asked}`)
        return (await said<{ all: string[] }>(other, `create-${asked}`)).all
      })
      .not.toContain(first.name)

    // It ends without having closed anything.
    await other.kill('SIGKILL')
    await expect.poll(async () => readdir(directory)).toEqual([])
    await expect(openDatabase({ url: second.url }).query({ text: 'select 1' })).rejects.toMatchObject({
      code: 'DATABASE_UNAVAILABLE',
    })
  })

  it('serves the example with node:test, and leaves nothing behind', async () => {
    const directory = await temporaryDirectory()
    onTestFinished(async () => removeDirectory(directory))
    const env = { TMPDIR: directory, TEST_DATABASE_URL: '' }
    // The default reporter depends on the version of Node.js.
    const execArgv = ['--test', '--test-reporter=tap']
    const run = spawnNode('examples/testing/shop.test.mjs', [], { env, execArgv })
    const { code } = await run.exited
    expect(run.output()).toMatchObject({ stdout: expect.stringMatching(/^# pass 5$/m), stderr: '' })
    expect(code).toBe(0)
    await expect.poll(async () => readdir(directory)).toEqual([])
  })
})

it('the guide shows the example', async () => {
  const guide = await projectFile('docs/guides/testing.md')
  for (const file of ['shop.mjs', 'shop.test.mjs']) {
    const code = await projectFile(`examples/testing/${file}`)
    expect(guide).toContain(`\`\`\`js [${file}]\n${code}\`\`\`\n`)
  }
})
