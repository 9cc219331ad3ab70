// What an application does with the installed package: migrates, publishes an event, serves the dashboard. It is given the
// modules, so that the same is done however they were loaded, and prints what it saw.
'use strict'

const { execFileSync } = require('node:child_process')

/** Publishes an event. With WATCH, the handler blocks the event loop until the lease of its row was renewed. */
async function publish({ core, outbox, handlers }, { databaseUrl, schema, db }) {
  const { enqueue } = outbox.createOutbox({ schema })
  await db.transaction(async (tx) => enqueue(tx, { type: 'order.paid', payload: { order: 7 } }))
  let onPublished
  const published = new Promise((resolve) => (onPublished = resolve))
  const publisher = handlers.handlers({
    'order.paid': async ({ payload }) => {
      if (process.env.WATCH) execFileSync(process.execPath, [process.env.WATCH], { stdio: 'inherit' })
      onPublished(payload)
    },
  })
  const workers = [outbox.relay({ publisher, schema, settings: { leaseMs: 3_000 } })]
  const runtime = await core.startRuntime({ databaseUrl, schema, workers })
  const payload = await published
  const { clean } = await runtime.stop()
  const { rows } = await db.query({ text: `select status, attempts from ${schema}.outbox` })
  return { payload, clean, rows }
}

async function serve({ server }, { db, schema }) {
  const dashboard = server.createDashboard({ db, schema })
  const answer = async (path) => dashboard.fetch(new Request(`http://127.0.0.1${path}`))
  const page = await (await answer('/')).text()
  const paths = [...page.matchAll(/"(\/assets\/[^"]+)"/g)].map(([, path]) => path)
  const assets = await Promise.all(
    paths.map(async (path) => (await (await answer(path)).text()).length > 100),
  )
  await dashboard.stop()
  return { version: /&#34;version&#34;:&#34;([^&]+)/.exec(page)?.[1], assets }
}

exports.run = async (modules) => {
  const { DATABASE_URL: databaseUrl, SCHEMA: schema } = process.env
  const { core, embedded } = modules
  const db = core.openDatabase({ url: databaseUrl })
  try {
    const { applied } = await core.migrate(db, { schema })
    const { payload, clean, rows } = await publish(modules, { databaseUrl, schema, db })
    const dashboard = await serve(modules, { db, schema })
    const refused = await embedded
      .startEmbedded({ directory: `${process.cwd()}/none` })
      .catch((error) => error.code)
    const seen = { applied, payload, clean, rows, dashboard, embedded: refused }
    process.stdout.write(`${JSON.stringify(seen)}\n`)
  } finally {
    await db.close()
  }
}
