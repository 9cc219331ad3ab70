import { afterAll, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { makeChunks, makeJob } from '../../../test/support/operated-sync.ts'
import { openDatabase } from '../../postgres/database.ts'
import { listJobs } from './browse.ts'
import { listChunks } from './chunks.ts'
import { progress, progressOfAll } from './progress.ts'
import { cancelJob } from './cancel.ts'
import { retryFailed } from './retry.ts'
import { syncUpkeep } from './upkeep.ts'
const { url } = useDatabase()
const db = openDatabase({ url, queryTimeoutMs: 300_000 })
afterAll(async () => db.close())
it('scale', async () => {
  const t = async (name: string, f: () => Promise<unknown>) => {
    for (let i = 0; i < (name.includes('*') ? 3 : 1); i++) {
      const s = performance.now()
      await f()
      process.stderr.write('T ' + name + ' ' + String(Math.round(performance.now() - s)) + '\n')
    }
  }
  for (let m = 0; m < 5; m++) {
    const j = await makeJob(db, { matrix: `x${m}`, state: 'completed' })
    await makeChunks(db, j, 100_000, { matrix: `x${m}`, state: 'done' })
  }
  const jobId = await makeJob(db, { agoMs: 100_000 })
  await makeChunks(db, jobId, 60_000, { state: 'done' })
  await makeChunks(db, jobId, 4, { state: 'running', from: 60_001 })
  await makeChunks(db, jobId, 39_000, { from: 60_005 })
  await makeChunks(db, jobId, 996, { state: 'failed', from: 99_005 })
  await t('unanalyzed *progress', () => progress(db, jobId))
  await db.query({ text: 'analyze' })
  await t('*progress', () => progress(db, jobId))
  await t('*all', () => progressOfAll(db))
  await t('*listJobs', () => listJobs(db))
  await t('*listChunks', () => listChunks(db, jobId))
  await t('*listChunks failed', () => listChunks(db, jobId, { states: ['FAILED'] }))
  const who = { jobId, principal: 'a', reason: 'b' }
  await t('cancel', () => cancelJob(db, who))
  await t('retry', () => retryFailed(db, who))
  await t('upkeep', () => syncUpkeep(db, { completedMs: 0 }))
  await t('*progress', () => progress(db, jobId))
}, 600_000)
