// Who runs, and with which settings.

const LEASEHOLD = 'defaults; fenced, rows kept'

const graphileWorker = (localQueue, concurrentJobs) => ({
  name: `graphile_${localQueue}_${concurrentJobs}`,
  system: 'graphile-worker',
  label: 'graphile-worker 0.18.0',
  settings: `localQueue ${localQueue}, ${concurrentJobs} jobs, completeJobBatchDelay 0; not fenced, rows deleted`,
  options: { localQueue, concurrentJobs },
})

const PG_BOSS = {
  name: 'pg_boss',
  system: 'pg-boss',
  label: 'pg-boss 12.38.0',
  settings: 'batchSize 500, localConcurrency 4, burstWhenBatchFull; rows kept',
  options: { batchSize: 500, localConcurrency: 4 },
}

/** `comparedWith` names the side that a side's ratio is to; the peers are compared with leasehold. */
export function lineUp({ only, neighbours, ordered, poison, dist, against }) {
  const leasehold = (name, scenario, label, settings = LEASEHOLD, from = dist) => ({
    name,
    system: 'leasehold',
    label,
    settings,
    options: { scenario, dist: from.href },
  })
  const sides = [
    leasehold('leasehold', 'drain', 'leasehold'),
    graphileWorker(1_000, 24),
    ...(neighbours ? [graphileWorker(500, 24), graphileWorker(500, 50), graphileWorker(1_000, 50)] : []),
    PG_BOSS,
    ...(against === undefined
      ? []
      : [leasehold('leasehold_other', 'drain', 'leasehold, the other build', LEASEHOLD, against)]),
    ...(ordered ? [leasehold('leasehold_ordered', 'ordered', 'leasehold, a key for every 20 events')] : []),
    ...(poison
      ? [
          leasehold('leasehold_no_poison', 'poisonNone', 'leasehold, half the rows, keyed'),
          leasehold('leasehold_poison', 'poisonOne', 'leasehold, the same beside one stuck key'),
          leasehold('leasehold_inserted', 'poisonInserted', 'leasehold, that key by plain INSERT'),
        ]
      : []),
  ].map((side) => ({
    ...side,
    comparedWith: side.options.scenario?.startsWith('poison') ? 'leasehold_no_poison' : 'leasehold',
  }))
  const chosen = only === undefined ? sides : sides.filter(({ system }) => only.includes(system))
  if (chosen.length > 0) return chosen
  throw new Error(`--only ${only.join(',')}: there are leasehold, graphile-worker and pg-boss`)
}
