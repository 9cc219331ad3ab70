// Writes the events of a scenario, one transaction for each event unless the scenario says otherwise.
import { withClient } from './client.mjs'
import { payloadsOf } from './producer.mjs'
import { keyExpression, payloadExpression } from './scenarios.mjs'

/**
 * The procedure commits after each event, which is quicker than a round trip for each and gives the same transactions,
 * index entries and WAL. Its commits do not wait for the disk; the writing is not timed.
 */
const PROCEDURE = (name, insert) => `create procedure bench.${name}(first int, last int, per_second int)
language plpgsql as $procedure$
declare
  began timestamptz := clock_timestamp();
begin
  for n in first..last loop
    ${insert};
    commit;
    if per_second > 0 and n % 10 = 0 then
      perform pg_sleep((n - first + 1)::float8 / per_second - extract(epoch from clock_timestamp() - began));
    end if;
  end loop;
end
$procedure$`

/** The largest number of an event that is measured; probes have larger ones. */
const FIRST_PROBE = 1_000_000_000

export async function createWriter({ url, side, scenario, keyCount, payloadBytes }) {
  if (side.writeEvents !== undefined) return
  const insert = (type, keys) =>
    side.insert({
      type,
      key: keyExpression(keys, keyCount),
      payload: payloadExpression(payloadBytes),
    })
  await withClient(url, async (client) => {
    await client.query('create schema bench')
    await client.query(PROCEDURE('write', insert('event', scenario.keys)))
    await client.query(PROCEDURE('write_stuck', insert('event', 'stuck')))
    await client.query(PROCEDURE('write_probe', insert('probe', scenario.keys)))
  })
}

export async function writeEvents({ url, side, scenario, events, keyCount, payloadBytes, liveRate }) {
  // A side that is not on PostgreSQL writes its events itself.
  if (side.writeEvents !== undefined) {
    await side.writeEvents({ url, events, payload: payloadsOf(payloadBytes) })
    return
  }
  if (scenario.stuck) await callInPortions(url, 'bench.write_stuck', events)
  if (scenario.written === 'one by one') {
    await callInPortions(url, 'bench.write', events)
    return
  }
  if (scenario.written === 'bulk') {
    await writeBulk({ url, side, keys: scenario.keys, events, keyCount, payloadBytes })
    return
  }
  await withClient(url, async (client) => {
    await client.query(SESSION)
    await client.query(CALL('bench.write'), [1, events, liveRate])
  })
}

/** One INSERT for all events. */
async function writeBulk({ url, side, keys, events, keyCount, payloadBytes }) {
  const insert = side.insertMany({
    key: keyExpression(keys, keyCount),
    payload: payloadExpression(payloadBytes),
  })
  await withClient(url, async (client) => {
    await client.query(SESSION)
    await client.query(insert, [events])
  })
}

const SESSION = 'set synchronous_commit = off'
const CALL = (procedure) => `call ${procedure}($1, $2, $3)`
const FIRST_PORTION = 1_000

/**
 * Each portion is as large as all before it, in a session of its own with fresh statistics. Otherwise functions of a peer
 * would run to the end with plans made for empty tables (graphile-worker's add_job: 4 ms for each job instead of 1).
 */
async function callInPortions(url, procedure, events) {
  for (let first = 1, size = FIRST_PORTION; first <= events; first += size, size = first - 1) {
    await withClient(url, async (client) => {
      await client.query(SESSION)
      await client.query(CALL(procedure), [first, Math.min(first + size - 1, events), 0])
      await client.query('analyze')
    })
  }
}

/** Writes one probe, as a producer does: the call returns once it is committed. */
export async function writeProbe(client, number) {
  await client.query('call bench.write_probe($1, $1, 0)', [FIRST_PROBE + number])
}
