import { expect, it } from 'vitest'
import { loadSettings } from '../src/config/load.ts'
import { EXAMPLE } from './support/payment-example.ts'
import { marked, projectFile, snippets } from './support/project-files.ts'

it('the code in the guide is that of the example, word for word', async () => {
  const [embedded = ''] = await marked('examples/payment-reconciler/server.mjs')
  expect(await snippets('docs/reconcile.md', 'js')).toEqual([
    (await projectFile('examples/payment-reconciler/payments.mjs')).trim(),
    embedded,
  ])
})

it('the table of the example is declared as its migration says', async () => {
  const migration = await projectFile('examples/payment-reconciler/migrations/002_reconcile_lease.sql')
  const [, declared = ''] = migration.replaceAll(/^-- {0,3}/gm, '').split('const table = ')
  const payments = await projectFile('examples/payment-reconciler/payments.mjs')
  expect(declared.trim()).toMatch(/^leaseTable\(\{.*\}\)$/s)
  expect(payments).toContain(`const table = ${declared.trim()}\n`)
})

it('REC-01: the config of the example declares every role that its deployment has, and dials nobody', async () => {
  // The config reads it itself, as a deployment has it.
  process.env['DATABASE_URL'] = 'postgresql://app@127.0.0.1:9/app'
  const { settings } = await loadSettings({
    flags: {},
    environment: { DATABASE_URL: 'postgresql://app@127.0.0.1:9/app' },
    workingDirectory: EXAMPLE,
    terminal: false,
  })
  const roles = new Set(settings.workers.map(({ name, role = name }) => role))
  expect([...roles]).toEqual(['outbox', 'sync', 'reconcile'])
})
