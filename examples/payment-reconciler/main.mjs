// The schema, the API and a reconciler in one process. `npm run topology all` runs each service as a process of its own.
await import('./migrate.mjs')
process.env.RECONCILER = 'embedded'
await import('./server.mjs')
