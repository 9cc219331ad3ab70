// A part of one side, in a process of its own: `prepare` or `drain`.
import { createClock } from './clock.mjs'
import { withClient } from './client.mjs'
import { openSide } from './sides/index.mjs'

const { part, side, url, rows, serverPid } = JSON.parse(process.argv[2])

// Whoever started it is gone: nobody waits for the answer.
process.once('disconnect', () => process.exit(1))

async function run() {
  const opened = await openSide(side)
  if (part === 'prepare') {
    await opened.prepare({ url, rows })
    return {}
  }
  const clock = createClock(serverPid)
  const told = await opened.drain({ url, rows, clock })
  // A number is only worth something if the work was done.
  const expected = opened.measured(rows)
  const values = opened.finished.includes('$1') ? [expected] : []
  const answer = await withClient(url, async (client) => client.query(opened.finished, values))
  const done = answer.rows[0].finished
  if (done !== expected) throw new Error(`${done} rows are finished instead of ${expected}`)
  return { rows: done, ...clock.reading(), ...told }
}

const answer = await run().catch((error) => ({ error: error.message ?? String(error) }))
process.send(answer, () => process.exit(0))
