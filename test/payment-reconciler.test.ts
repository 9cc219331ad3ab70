import { expect, it, onTestFinished, vi } from 'vitest'
import { loadSettings } from '../src/config/load.ts'
import { EXAMPLE } from './support/payment-example.ts'
import { marked, projectFile, snippets } from './support/project-files.ts'

it('the code in the reconcile guide is identical to that of the example', async () => {
  const [embedded = ''] = await marked('examples/payment-reconciler/server.mjs')
  expect(await snippets('docs/guides/reconcile.md', 'js')).toEqual([
    (await projectFile('examples/payment-reconciler/payments.mjs')).trim(),
    embedded,
  ])
})

it('the declaration of the example matches its migration', async () => {
  const migration = await projectFile('examples/payment-reconciler/migrations/002_reconcile_lease.sql')
  const [, declared = ''] = migration.replaceAll(/^-- {0,3}/gm, '').split('const table = ')
  const payments = await projectFile('examples/payment-reconciler/payments.mjs')
  expect(declared.trim()).toMatch(/^leaseTable\(\{.*\}\)$/s)
  expect(payments).toContain(`const table = ${declared.trim()}\n`)
})

it('REC-01: the configuration of the example declares every role of its deployment without opening a connection', async () => {
  // The config reads it itself, as a deployment has it.
  vi.stubEnv('DATABASE_URL', 'postgresql://app@127.0.0.1:9/app')
  onTestFinished(() => void vi.unstubAllEnvs())
  const { settings } = await loadSettings({
    flags: {},
    environment: { DATABASE_URL: 'postgresql://app@127.0.0.1:9/app' },
    workingDirectory: EXAMPLE,
    terminal: false,
  })
  const roles = new Set(settings.workers.map(({ name, role = name }) => role))
  expect([...roles]).toEqual(['outbox', 'sync', 'reconcile'])
})
