/** Loaded only in the process that needs it: a side does not pay for the modules of another. */
export async function openSide({ system, ...options }) {
  switch (system) {
    case 'leasehold':
      return (await import('./leasehold.mjs')).leasehold(options)
    case 'graphile-worker':
      return (await import('./graphile-worker.mjs')).graphileWorker(options)
    case 'pg-boss':
      return (await import('./pg-boss.mjs')).pgBoss(options)
    case 'bullmq':
      return (await import('./bullmq.mjs')).bullmq(options)
    case 'bullmq-postgres':
      return (await import('./bullmq.mjs')).bullmq({ ...options, backend: 'postgres' })
    case 'pgque':
      return (await import('./pgque.mjs')).pgque(options)
    case 'plain-table':
      return (await import('./plain-table.mjs')).plainTable(options)
    case 'webhooks':
      return (await import('./webhooks.mjs')).webhooks(options)
    default:
      throw new Error(`there is no side ${system}`)
  }
}
