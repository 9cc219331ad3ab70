import { readFile } from 'node:fs/promises'
import { expect, it } from 'vitest'
import { apiReport } from '../scripts/api.mjs'

it('docs/api.txt shows what the package exports; npm run api writes it', async () => {
  const checkedIn = await readFile(new URL('../docs/api.txt', import.meta.url), 'utf8')
  expect(await apiReport()).toBe(checkedIn)
})

it('the root exports about 30 names', async () => {
  const [, count] = /^# leasehold \((\d+) names\)$/m.exec(await apiReport()) ?? []
  expect(Number(count)).toBeGreaterThan(20)
  expect(Number(count)).toBeLessThanOrEqual(39)
})
