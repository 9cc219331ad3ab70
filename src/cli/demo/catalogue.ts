/** Sync: the catalogues of suppliers are imported in chunks. Now and then one fails. */
import { createSync } from '../../sync/index.ts'
import type { WorkDeclaration } from '../../worker/index.ts'
import { pause } from '../../worker/loop.ts'
import type { DemoPart } from './demo.ts'

const JOB_EVERY_MS = 12_000
const SUPPLIERS = ['books', 'games', 'music', 'tools']
const SECTIONS = 8

export function catalogue(schema: string, stopping: AbortSignal): DemoPart {
  const sync = createSync({ schema })
  const imported = sync.define<{ readonly section: number }>('catalogue', {
    plan: () => Array.from({ length: SECTIONS }, (_, index) => ({ section: index + 1 })),
    async syncChunk({ matrixId, query: { section } }) {
      await pause(500 + Math.random() * 2_500, stopping)
      if (Math.random() < 0.15) throw new Error(`section ${section} of ${matrixId}: connection reset by peer`)
      return { rows: 20 + Math.floor(Math.random() * 200) }
    },
    concurrency: 2,
    retry: { maxAttempts: 2, firstMs: 1_000 },
  })
  let jobs = 0
  return {
    // Only the handlers know the types of the rows; here they are passed on.
    workers: sync.runner() as unknown as WorkDeclaration[],
    loops: [
      {
        name: 'catalogue',
        everyMs: JOB_EVERY_MS,
        async work(db) {
          await imported.enqueue(db, { matrixId: SUPPLIERS[jobs % SUPPLIERS.length] ?? 'books', force: true })
          jobs += 1
        },
      },
    ],
  }
}
