// What is synced, and how: a chunk is one county in one year. Its rows and its checkpoint commit in one transaction, so
// that they are there exactly once, wherever the process was killed.
import { createSync } from 'leasehold/sync'

export const TABLE = `create schema if not exists statistics;
create table if not exists statistics.population (
  county text, year int, sex text, age text, people int not null, primary key (county, year, sex, age))`

/** Any number of processes may run this at the same time: together they keep to `perSecond`. */
export function populationSync({ db, officeUrl, perSecond }) {
  const sync = createSync()

  const population = sync.define('population', {
    async *plan({ matrixId }, { call, signal }) {
      await call()
      const { dimensions } = await (await ask(`${officeUrl}/matrices/${matrixId}`, signal)).json()
      for (const county of dimensions.county) for (const year of dimensions.year) yield { county, year }
    },

    async syncChunk({ matrixId, query: { county, year } }, { settleIn, signal }) {
      const url = `${officeUrl}/matrices/${matrixId}/data.csv?${new URLSearchParams({ county, year })}`
      const rows = readCsv(await (await ask(url, signal)).text())
      await db.transaction(async (tx) => {
        // What was there of this chunk is replaced: a job may be forced to sync it again.
        await tx.query({
          text: 'delete from statistics.population where county = $1 and year = $2',
          values: [county, year],
        })
        await tx.query({
          text: `insert into statistics.population
            select $1, $2, * from unnest($3::text[], $4::text[], $5::int[])`,
          values: [county, year, ...['sex', 'age', 'people'].map((column) => rows.map((row) => row[column]))],
        })
        await settleIn(tx, { rows: rows.length })
      })
    },

    source: { name: 'statistics-office', perSecond },
    concurrency: 4,
    retry: { firstMs: 500 },
  })

  return { sync, population }
}

/** What the office does not answer is tried again, by the policy above. */
async function ask(url, signal) {
  const answer = await fetch(url, { signal })
  if (!answer.ok) throw new Error(`${url} was answered with ${answer.status}`)
  return answer
}

function readCsv(text) {
  const [header, ...lines] = text.trim().split('\n')
  const columns = header.split(',')
  return lines.map((line) => {
    const cells = line.split(',')
    return Object.fromEntries(columns.map((column, i) => [column, cells[i]]))
  })
}
