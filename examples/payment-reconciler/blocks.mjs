// The headers of the chain's blocks, copied in chunks of a hundred.
import { openDatabase } from 'leasehold'
import { createSync } from 'leasehold/sync'
import { createChain } from './chain.mjs'

const CHUNK = 100

/** The workers of the sync; whoever asks for a job needs only its name. */
export function syncBlocks(databaseUrl, chain = createChain()) {
  const db = openDatabase({ url: databaseUrl, maxConnections: 2, applicationName: 'blocks' })
  const sync = createSync()
  sync.define('blocks', {
    *plan({ params: { from, to } }) {
      for (let first = from; first <= to; first += CHUNK)
        yield { first, last: Math.min(first + CHUNK - 1, to) }
    },
    async syncChunk({ query: { first, last } }, { settleIn }) {
      const heights = Array.from({ length: last - first + 1 }, (_, i) => first + i)
      await db.transaction(async (tx) => {
        await tx.query({
          text: `insert into app.blocks (height, hash) select * from unnest($1::bigint[], $2::text[])
            on conflict (height) do update set hash = excluded.hash`,
          values: [heights, heights.map((height) => chain.hashOf(`block ${height}`))],
        })
        await settleIn(tx, { rows: heights.length })
      })
    },
  })
  const [jobs, chunks] = sync.runner()
  return [jobs, { ...chunks, close: async () => db.close() }]
}
