import { chmod, lchown, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { useConfigFiles } from '../../test/support/config-files.ts'
import { LeaseholdError } from '../errors.ts'
import { distrust } from '../file-trust.ts'
import { loadSettings, type SettingsInput } from './load.ts'
import { SETTING_NAMES, TEST_VARIABLES, variableOf } from './schema.ts'

const { root, directoryWith } = useConfigFiles()

/** The text of all files of one of the project's folders. */
async function sourcesIn(folder: string): Promise<string> {
  const directory = new URL(`../../${folder}/`, import.meta.url)
  const entries = await readdir(directory, { recursive: true, withFileTypes: true })
  const paths = entries.filter((entry) => entry.isFile() && /\.m?[jt]s$/.test(entry.name))
  const texts = await Promise.all(
    paths.map(async (entry) => readFile(join(entry.parentPath, entry.name), 'utf8')),
  )
  return texts.join('\n')
}

async function load(input: Partial<SettingsInput> = {}) {
  return loadSettings({
    flags: {},
    environment: {},
    workingDirectory: root.path,
    terminal: false,
    ...input,
  })
}

async function refusal(input: Partial<SettingsInput>): Promise<string> {
  const error: unknown = await load(input).then(
    () => undefined,
    (reason: unknown) => reason,
  )
  if (!(error instanceof LeaseholdError)) throw new Error(`not refused: ${String(error)}`)
  expect(error.code).toBe('SETTING_INVALID')
  return error.message
}

describe('the sources of settings', () => {
  it('without flags, variables and a config file the defaults apply', async () => {
    const { settings, sources } = await load()
    expect(settings).toEqual({
      databaseUrl: undefined,
      listenUrl: undefined,
      directory: join(root.path, '.leasehold'),
      schema: 'leasehold',
      host: '127.0.0.1',
      port: 7400,
      metricsHost: undefined,
      metricsPort: 7401,
      logLevel: 'info',
      logFormat: 'json',
      secretKey: undefined,
      webhookAllow: [],
      webhookRefuse: [],
      webhookPorts: undefined,
      webhookProxy: undefined,
      webhookEndpointsPerTenant: 100,
      databaseWaitMs: 30_000,
      maxConnections: undefined,
      auditRetentionMs: undefined,
      timing: { leaseMs: 30_000, heartbeatMs: 9_000, reaperIntervalMs: 10_000, shutdownTimeoutMs: 24_000 },
      givenTiming: {},
      workers: [],
    })
    expect(sources.port.kind).toBe('default')
  })

  it('flags win over the environment, the environment over the file, the file over the defaults', async () => {
    const workingDirectory = await directoryWith(
      'export default { port: 1, schema: "from_file", logLevel: "debug", leaseMs: undefined }',
    )
    const { settings, sources } = await load({
      workingDirectory,
      flags: { port: '3' },
      environment: { LEASEHOLD_PORT: '2', LEASEHOLD_SCHEMA: 'from_environment' },
    })
    expect(settings).toMatchObject({ port: 3, schema: 'from_environment', logLevel: 'debug' })
    expect(sources).toMatchObject({
      port: { kind: 'flag', name: '--port' },
      schema: { kind: 'environment', name: 'LEASEHOLD_SCHEMA' },
      logLevel: { kind: 'file', name: 'leasehold.config.mjs:1' },
      leaseMs: { kind: 'default' },
    })
  })

  it('a variable with _FILE names a file that has the value; the variable itself wins, and a missing file is an error', async () => {
    const workingDirectory = await directoryWith('export default {}')
    const file = join(workingDirectory, 'url')
    await writeFile(file, 'postgresql://user:secret@host/app\n')
    const { settings, sources } = await load({ environment: { DATABASE_URL_FILE: file } })
    expect(settings.databaseUrl).toBe('postgresql://user:secret@host/app')
    expect(sources.databaseUrl).toEqual({ kind: 'environment', name: 'DATABASE_URL_FILE' })
    const both = { DATABASE_URL: 'postgresql://other@host/app', DATABASE_URL_FILE: file }
    expect((await load({ environment: both })).settings.databaseUrl).toBe('postgresql://other@host/app')
    await expect(load({ environment: { LEASEHOLD_SECRET_KEY_FILE: `${file}.none` } })).rejects.toThrow(
      /LEASEHOLD_SECRET_KEY_FILE \(environment\) is .*\.none, which cannot be read/,
    )
    await expect(load({ environment: { LEASEHOLD_PORT_FILE: file } })).rejects.toThrow('is not a setting')
  })

  it('an empty variable counts as not set', async () => {
    const { settings } = await load({ environment: { DATABASE_URL: '', LEASEHOLD_PORT: '' } })
    expect(settings).toMatchObject({ databaseUrl: undefined, port: 7400 })
  })

  it('the log is pretty on a terminal, unless the setting says otherwise', async () => {
    expect((await load({ terminal: true })).settings.logFormat).toBe('pretty')
    expect((await load({ terminal: true, flags: { logFormat: 'json' } })).settings.logFormat).toBe('json')
  })

  it.each([
    'postgresql://user:pass@db.example:6432/app?sslmode=verify-full',
    'postgres://localhost/app',
    'postgresql:///app?host=/var/run/postgresql',
  ])('%s is accepted as a database URL', async (databaseUrl) => {
    expect((await load({ flags: { databaseUrl } })).settings.databaseUrl).toBe(databaseUrl)
  })
})

describe('invalid settings', () => {
  it('are all reported at once, each with the setting, its source, its value and the rule', async () => {
    const workingDirectory = await directoryWith('export default { logLevel: 7, schema: "pg_mine" }')
    const message = await refusal({
      workingDirectory,
      flags: { port: '70000' },
      environment: {
        LEASEHOLD_HOST: 'http://0.0.0.0',
        LEASEHOLD_LEASE_MS: '1000',
        LEASEHOLD_HEARTBEAT_MS: '400',
      },
    })
    expect(message).toContain("port (--port) is '70000', but must be a whole number from 0 to 65535")
    expect(message).toContain("host (LEASEHOLD_HOST) is 'http://0.0.0.0'")
    expect(message).toContain('logLevel (leasehold.config.mjs:1) is 7, but must be one of trace, debug')
    expect(message).toContain("schema (leasehold.config.mjs:1) is 'pg_mine'")
    expect(message).toContain('heartbeatMs is 400, but must be less than a third of leaseMs (1000 / 3')
    expect(message).toContain('heartbeatMs from LEASEHOLD_HEARTBEAT_MS')
    expect(message).toMatch(/^5 settings are invalid/)
  })

  it.each([
    ['a flag', { flags: { shutdownTimeoutMs: '5001', leaseMs: '5000' } }, '--shutdown-timeout-ms'],
    [
      'the environment',
      { environment: { LEASEHOLD_LEASE_MS: '5000', LEASEHOLD_SHUTDOWN_TIMEOUT_MS: '5001' } },
      'LEASEHOLD_SHUTDOWN_TIMEOUT_MS',
    ],
  ])(
    'RULE-020-031: a shutdown timeout longer than the lease is refused with both numbers: from %s',
    async (_, input, source) => {
      const message = await refusal(input)
      expect(message).toContain('shutdownTimeoutMs is 5001, but must be at most leaseMs (5000)')
      expect(message).toContain(source)
    },
  )

  it('RULE-020-031: a shutdown timeout longer than the lease is refused in the config file, for all workers and for one; an equal one is accepted', async () => {
    const worker = (settings: string): string =>
      `import { leaseTable } from ${JSON.stringify(new URL('../../dist/index.js', import.meta.url).href)}
const table = leaseTable({
  table: 'public.jobs', claimable: 'finished_at is null', attempts: {},
  outcomes: { done: { finished_at: 'now()' }, dead: { finished_at: 'now()' } },
})
export default { leaseMs: 5000, workers: [{ name: 'jobs', table, handle: async () => {}, settings: ${settings} }] }`
    const wrong = 'shutdownTimeoutMs is 5001, but must be at most leaseMs (5000)'
    const forAll = await directoryWith('export default { leaseMs: 5000, shutdownTimeoutMs: 5001 }')
    expect(await refusal({ workingDirectory: forAll })).toContain(wrong)
    const forOne = await directoryWith(worker('{ shutdownTimeoutMs: 5001 }'))
    expect(await refusal({ workingDirectory: forOne })).toContain(wrong)
    const equal = await directoryWith(worker('{ shutdownTimeoutMs: 5000 }'))
    expect((await load({ workingDirectory: equal })).settings.workers).toHaveLength(1)
  })

  it.each([
    ['port', '7400.5'],
    ['port', '-1'],
    ['port', ''],
    ['port', '0x10'],
    ['schema', 'information_schema'],
    ['schema', 'with space'],
    ['schema', 'Quoted'],
    ['schema', 'a'.repeat(64)],
    ['host', 'my host'],
    ['host', '127.0.0.1:7400/'],
    ['logFormat', 'xml'],
    ['directory', ''],
    ['leaseMs', 'soon'],
    ['leaseMs', '0'],
    ['databaseWaitMs', '-1'],
    ['databaseUrl', 'mysql://localhost/app'],
    ['databaseUrl', 'localhost'],
    ['databaseUrl', 'postgresql://one,,two/app'],
    ['databaseUrl', 'postgresql://one,two/app?target_session_attrs=standby'],
  ])('%s = %j is refused', async (name, value) => {
    expect(await refusal({ flags: { [name]: value } })).toContain(name)
  })

  it.each([
    'mysql://user:s3cret@localhost/app',
    'postgresql://user:s3cret@host:port/app',
    'postgresql://user:s3cret@one,two:port/app',
    'postgresql://user:s3cret@one,two/app?target_session_attrs=standby',
    'user:s3cret@localhost/app',
    'http://localhost/app?password=s3cret',
  ])('a refused database URL does not show its password: %#', async (url) => {
    const message = await refusal({ environment: { DATABASE_URL: url, LEASEHOLD_LISTEN_URL: url } })
    expect(message).toContain('databaseUrl (DATABASE_URL)')
    expect(message).toContain('listenUrl (LEASEHOLD_LISTEN_URL)')
    expect(message).not.toContain('s3cret')
  })
})

it('a database URL may name several hosts', async () => {
  const databaseUrl = 'postgresql://user:s3cret@one:5432,two:5433/app?target_session_attrs=read-write'
  const { settings } = await load({ environment: { DATABASE_URL: databaseUrl } })
  expect(settings.databaseUrl).toBe(databaseUrl)
})

describe('the secret key', () => {
  const KEY = Buffer.alloc(32, 7).toString('base64')

  it('comes from the environment or the file, and may be a list of keys', async () => {
    const environment = { LEASEHOLD_SECRET_KEY: `${KEY}, ${Buffer.alloc(32, 8).toString('hex')}` }
    const { settings, sources } = await load({ environment })
    expect(settings.secretKey).toBe(environment.LEASEHOLD_SECRET_KEY)
    expect(sources.secretKey).toEqual({ kind: 'environment', name: 'LEASEHOLD_SECRET_KEY' })
    const workingDirectory = await directoryWith(`export default { secretKey: '${KEY}' }`)
    expect((await load({ workingDirectory })).settings.secretKey).toBe(KEY)
  })

  it('is never read from a flag, which everybody on the machine could see', async () => {
    expect((await load({ flags: { secretKey: KEY } })).settings.secretKey).toBeUndefined()
  })

  it.each(['s3cret', `${KEY},s3cret`, `${KEY}s3cret`])(
    'is refused and not shown when it is invalid: %#',
    async (key) => {
      const message = await refusal({ environment: { LEASEHOLD_SECRET_KEY: key } })
      expect(message).toContain(
        'secretKey (LEASEHOLD_SECRET_KEY) is set (and not shown), but must be 32 bytes',
      )
      expect(message).not.toContain('s3cret')
      expect(message).not.toContain(KEY)
    },
  )
})

it.each([
  'ftp://t0ken:s3cret@proxy.test',
  'ftp://t0ken@proxy.test',
  't0ken:s3cret@proxy.test',
  'http://t0ken:s3cret%zz@p.test',
])('a proxy that is refused is shown without its credentials: %#', async (proxy) => {
  const message = await refusal({ environment: { LEASEHOLD_WEBHOOK_PROXY: proxy } })
  expect(message).toContain('webhookProxy (LEASEHOLD_WEBHOOK_PROXY) is')
  expect(message).not.toContain('t0ken')
  expect(message).not.toContain('s3cret')
})

describe('the config file', () => {
  it('an unknown setting is refused, and the nearest known one is suggested', async () => {
    const workingDirectory = await directoryWith(
      'export default { prot: 1, lease_ms: 2, toString: 3, nothingLikeIt: 4 }',
    )
    const message = await refusal({ workingDirectory })
    expect(message).toContain('prot (leasehold.config.mjs:1) is not a setting: did you mean port?')
    expect(message).toContain('lease_ms (leasehold.config.mjs:1) is not a setting: did you mean leaseMs?')
    expect(message).toContain('toString (leasehold.config.mjs:1) is not a setting')
    expect(message).toContain(
      'nothingLikeIt (leasehold.config.mjs:1) is not a setting: the settings are databaseUrl,',
    )
  })

  it('a single problem is one sentence', async () => {
    const workingDirectory = await directoryWith('export default { prot: 1 }')
    expect(await refusal({ workingDirectory })).toBe(
      'prot (leasehold.config.mjs:1) is not a setting: did you mean port?',
    )
  })

  it.each([
    ['exports nothing', 'export const port = 1', 'is missing'],
    ['exports null', 'export default null', 'is null. Export an object of settings'],
    ['exports a list', 'export default [1]', 'Export an object'],
    [
      'exports its workers by name',
      'export const workers = []; export default {}',
      'Put them into the default export',
    ],
    [
      'declares workers badly',
      'export default { workers: [{ name: "a b" }] }',
      "name (leasehold.config.mjs) is 'a b'",
    ],
  ])('a file that %s is refused with its name', async (_, text, reason) => {
    const message = await refusal({ workingDirectory: await directoryWith(text) })
    expect(message).toContain('leasehold.config.mjs')
    expect(message).toContain(reason)
  })

  it('a setting is found in the file by its line, where only one line looks like it', async () => {
    const text =
      "// port: below\nexport default {\n  host: 'http://example.org',\n  port: -1,\n  'schema': 'pg_x',\n}"
    const message = await refusal({ workingDirectory: await directoryWith(text) })
    expect(message).toContain("host (leasehold.config.mjs:3) is 'http://example.org'")
    expect(message).toContain('port (leasehold.config.mjs) is -1')
    expect(message).toContain("schema (leasehold.config.mjs:5) is 'pg_x'")
  })

  it('two config files in one directory are refused', async () => {
    const workingDirectory = await directoryWith('export default {}')
    await writeFile(join(workingDirectory, 'leasehold.config.js'), 'export default {}')
    expect(await refusal({ workingDirectory })).toContain('leasehold.config.js and leasehold.config.mjs')
  })
})

describe('a command that does not need the workers', () => {
  const BROKEN = 'throw new Error("no luck")'

  it('uses the settings of a file whose workers are invalid, and warns', async () => {
    const workingDirectory = await directoryWith('export default { schema: "mine", workers: [{}] }')
    const { settings, warnings, ignoredFile } = await load({ workingDirectory, needsWorkers: false })
    expect(settings).toMatchObject({ schema: 'mine', workers: [] })
    expect(warnings).toHaveLength(1)
    expect(warnings[0]).toContain('The workers of leasehold.config.mjs are left out: ')
    expect(ignoredFile).toBeUndefined()
  })

  it('goes on without a file that cannot be imported, and warns', async () => {
    const workingDirectory = await directoryWith(BROKEN)
    const { warnings, ignoredFile } = await load({ workingDirectory, needsWorkers: false })
    expect(warnings).toEqual([
      'The settings of leasehold.config.mjs do not apply: leasehold.config.mjs cannot be imported, because of leasehold.config.mjs:1: Error: no luck. Correct the file, or remove it.',
    ])
    expect(ignoredFile).toBe('leasehold.config.mjs')
  })

  it('still refuses a setting that is not valid, because it may be the one that it uses', async () => {
    const workingDirectory = await directoryWith('export default { shcema: "mine" }')
    expect(await refusal({ workingDirectory, needsWorkers: false })).toContain('did you mean schema?')
  })
})

describe('a config file that somebody else may have written', () => {
  const USER = 1000

  it.each([
    ['of this user', { uid: USER, gid: USER, mode: 0o100_644 }],
    ['of root', { uid: 0, gid: 0, mode: 0o100_644 }],
    ["that the user's own group can write", { uid: USER, gid: USER, mode: 0o100_664 }],
  ])('a file %s is trusted', (_, file) => {
    expect(distrust(file, USER)).toBeUndefined()
  })

  it.each([
    [
      'of another user',
      { uid: 1001, gid: USER, mode: 0o100_600 },
      'belongs to the user 1001, not to this one (1000) or root',
      'chown 1000',
    ],
    [
      'that everybody can write',
      { uid: USER, gid: USER, mode: 0o100_646 },
      'can be written by everybody',
      'chmod go-w',
    ],
    [
      'that a shared group can write',
      { uid: USER, gid: 100, mode: 0o100_664 },
      'can be written by the group 100',
      'chmod go-w',
    ],
    [
      "that root's group can write",
      { uid: 0, gid: 0, mode: 0o100_664 },
      'can be written by the group 0',
      'chmod go-w',
    ],
  ])('a file %s is not', (_, file, what, command) => {
    expect(distrust(file, USER)).toEqual({ what, command })
  })

  it.skipIf(process.platform === 'win32')(
    'is refused by every command before it is run, with the command that mends it',
    async () => {
      const workingDirectory = await directoryWith('globalThis.wasRun = true; export default {}')
      const path = join(workingDirectory, 'leasehold.config.mjs')
      await chmod(path, 0o666)
      for (const needsWorkers of [true, false]) {
        expect(await refusal({ workingDirectory, needsWorkers })).toBe(
          `leasehold.config.mjs is not read, because it can be written by everybody: it is code that runs as this user. Check what is in it, and run: chmod go-w '${path}'`,
        )
      }
      expect(globalThis).not.toHaveProperty('wasRun')
      await chmod(path, 0o644)
      await expect(load({ workingDirectory })).resolves.toBeDefined()
    },
  )

  it.skipIf(process.platform === 'win32')(
    'is refused in a directory in which others can replace it, but not in one like /tmp',
    async () => {
      const workingDirectory = await directoryWith('export default {}')
      await chmod(workingDirectory, 0o777)
      expect(await refusal({ workingDirectory })).toBe(
        `leasehold.config.mjs is not read, because its directory can be written by everybody: it is code that runs as this user. Check what is in it, and run: chmod go-w '${workingDirectory}'`,
      )
      await chmod(workingDirectory, 0o1777)
      await expect(load({ workingDirectory })).resolves.toBeDefined()
    },
  )

  it.skipIf(process.platform === 'win32')(
    'is refused as a link into a directory in which others can replace it',
    async () => {
      const elsewhere = await directoryWith('export default {}')
      const workingDirectory = await directoryWith('export default {}')
      const path = join(workingDirectory, 'leasehold.config.mjs')
      await rm(path)
      await symlink(join(elsewhere, 'leasehold.config.mjs'), path)
      await expect(load({ workingDirectory })).resolves.toBeDefined()
      await chmod(elsewhere, 0o777)
      expect(await refusal({ workingDirectory })).toContain('its directory can be written by everybody')
    },
  )

  // Only root can give a file away.
  it.skipIf(process.getuid?.() !== 0)('is refused as a link that somebody else has made', async () => {
    const elsewhere = await directoryWith('export default {}')
    const workingDirectory = await directoryWith('export default {}')
    const path = join(workingDirectory, 'leasehold.config.mjs')
    await rm(path)
    await symlink(join(elsewhere, 'leasehold.config.mjs'), path)
    await lchown(path, USER, USER)
    expect(await refusal({ workingDirectory })).toContain('the link to it belongs to the user 1000')
  })
})

describe('the environment', () => {
  it('a variable that looks like a setting and is none is refused with the one that was meant', async () => {
    const message = await refusal({
      environment: { LEASEHOLD_PROT: '1', LEASEHOLD_DATABASE_URL: 'x', LEASEHOLD_WEATHER: 'y' },
    })
    expect(message).toContain('LEASEHOLD_PROT (environment) is not a setting: did you mean LEASEHOLD_PORT?')
    expect(message).toContain(
      'LEASEHOLD_DATABASE_URL (environment) is not a setting: did you mean DATABASE_URL?',
    )
    expect(message).toContain(
      'LEASEHOLD_WEATHER (environment) is not a setting: the variables are DATABASE_URL, LEASEHOLD_LISTEN_URL,',
    )
  })

  it('an unknown variable that is empty counts as not set', async () => {
    await expect(load({ environment: { LEASEHOLD_PROT: '' } })).resolves.toBeDefined()
  })

  it('the variables of the tests are known, and there are no others in the project', async () => {
    const folders = ['src', 'test', 'examples', 'bench', 'scripts']
    const texts = await Promise.all(folders.map(async (folder) => sourcesIn(folder)))
    const read = texts.flatMap((text) => [...text.matchAll(/\b(?:env|environment)\['(LEASEHOLD_\w+)'\]/g)])
    const names = new Set(read.map(([, name]) => name))
    for (const setting of SETTING_NAMES) names.delete(variableOf(setting))
    expect(names).toEqual(new Set(TEST_VARIABLES))
    const environment = Object.fromEntries(TEST_VARIABLES.map((name) => [name, '1']))
    await expect(load({ environment })).resolves.toBeDefined()
  })

  it('the variables that Kubernetes sets for a Service named leasehold are not taken for settings', async () => {
    const { settings } = await load({
      environment: {
        LEASEHOLD_SERVICE_HOST: '10.0.0.1',
        LEASEHOLD_SERVICE_PORT_HTTP: '7400',
        LEASEHOLD_PORT: 'tcp://10.0.0.1:7400',
        LEASEHOLD_PORT_7400_TCP_ADDR: '10.0.0.1',
        LEASEHOLD_HTTP_PORT: 'tcp://10.0.0.1:7400',
      },
    })
    expect(settings.port).toBe(7400)
  })
})

it('a retention of the audit below 30 days is refused with the setting, its value and the minimum', async () => {
  await expect(load({ environment: { LEASEHOLD_AUDIT_RETENTION_MS: '86400000' } })).rejects.toThrow(
    /LEASEHOLD_AUDIT_RETENTION_MS.*86400000.*2592000000 \(30 days\)/s,
  )
  const { settings } = await load({ environment: { LEASEHOLD_AUDIT_RETENTION_MS: '2592000000' } })
  expect(settings.auditRetentionMs).toBe(2_592_000_000)
})
