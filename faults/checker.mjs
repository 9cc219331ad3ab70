// Judges a run by its history and the final table, and by nothing else. README.md explains the rules.

/**
 * @param history the lines of a run, in the order in which they were appended; the final table and its changes are among
 *   them, as lines of the types `row` and `change`
 * @returns the objections, each with the rule that was broken, and the figures of the run
 */
export function check(history) {
  const facts = read(history)
  const objections = RULES.flatMap(([rule, broken]) => [...broken(facts)].map((text) => ({ rule, text })))
  return { objections, ...figures(facts) }
}

const RULES = [
  ['fired', neverFired],
  ['lost', (facts) => [...lost(facts), ...lostDeliveriesAndEffects(facts)]],
  ['rolled back', rolledBack],
  ['stale token', stale],
  ['dead', deadWithoutFailure],
  ['tokens', tokensDecreased],
  ['order', outOfOrder],
  ['terminal', notTerminal],
  ['duplicates', unexplainedDuplicates],
  ['event id', otherEventId],
]

export const RULE_NAMES = RULES.map(([rule]) => rule)

/** The lines, by what the rules look up. */
function read(history) {
  const facts = {
    run: {},
    fired: 0,
    /** The worker processes that ended without having settled or released what they held. */
    died: new Set(),
    transactions: new Map(),
    /** What producers wrote, by row. */
    written: new Map(),
    attempts: new Map(),
    accepted: new Map(),
    /** The rows that the sink itself rejected. */
    rejected: new Set(),
    settled: [],
    /** The rows that an operator replayed, or tried to. */
    replayed: new Set(),
    /** What a worker said about a lease that it lost or an attempt that failed, by row, token and worker. */
    ended: new Map(),
    changes: new Map(),
    rows: new Map(),
    /** Webhooks: the deliveries of the final table, and what receivers took. */
    deliveries: [],
    received: new Map(),
    /** Sync and reconcile: rows whose effects are in the same database, and how many effects each has. */
    outcomes: [],
    restored: undefined,
    calmAt: undefined,
    drainedAt: undefined,
  }
  history.forEach((line, position) => READERS[line.type]?.(facts, line, position))
  return facts
}

const READERS = {
  run: (facts, line) => (facts.run = line),
  fired: (facts) => (facts.fired += 1),
  ended: (facts, { worker, clean }) => clean !== true && facts.died.add(worker),
  begun: (facts, { tx }, position) => facts.transactions.set(tx, { begun: position, rows: [] }),
  written: (facts, line) => {
    facts.written.set(line.row, line)
    facts.transactions.get(line.tx).rows.push(line)
  },
  committed: (facts, { tx }, position) => endTransaction(facts, tx, 'committed', position),
  rolledBack: (facts, { tx }, position) => endTransaction(facts, tx, 'rolledBack', position),
  unknown: (facts, { tx }, position) => endTransaction(facts, tx, 'unknown', position),
  attempt: (facts, line, position) => append(facts.attempts, line.row, { ...line, position }),
  accepted: (facts, line, position) => append(facts.accepted, line.row, { ...line, position }),
  rejected: (facts, { row }) => facts.rejected.add(row),
  settled: (facts, line) => facts.settled.push(line),
  replay: (facts, { rows }) => rows.forEach((row) => facts.replayed.add(row)),
  fencedOff: (facts, line) => append(facts.ended, leaseOf(line), line),
  lost: (facts, line) => append(facts.ended, leaseOf(line), line),
  failed: (facts, line) => append(facts.ended, leaseOf(line), line),
  restored: (facts, line, position) => (facts.restored = { ...line, position }),
  calm: (facts, { at }) => (facts.calmAt = at),
  drained: (facts, { at }) => (facts.drainedAt = at),
  change: (facts, line) => append(facts.changes, line.row, line),
  row: (facts, line) => facts.rows.set(line.row, line),
  delivery: (facts, line) => facts.deliveries.push(line),
  received: (facts, { endpoint, eventId }) => append(facts.received, `${endpoint}/${eventId}`, eventId),
  outcome: (facts, line) => facts.outcomes.push(line),
}

function endTransaction(facts, tx, outcome, position) {
  Object.assign(facts.transactions.get(tx), { outcome, ended: position })
}

function append(lists, key, item) {
  const list = lists.get(key)
  if (list === undefined) lists.set(key, [item])
  else list.push(item)
}

const leaseOf = ({ row, token, worker }) => `${row}/${token}/${worker}`
const isFinished = ({ status }) => status === 'PUBLISHED' || status === 'DEAD'
const nameOf = ({ row, key }) => `row ${row}${key ? ` (key ${key})` : ''}`

/**
 * What is in the final table of what a transaction wrote. Its number is not enough: after a crash PostgreSQL may give a
 * number again that only a transaction had which was never committed.
 */
function finalOf({ rows }, { row, eventId }) {
  const final = rows.get(row)
  return final?.eventId === eventId ? final : undefined
}

/** Whether the rows of this transaction exist. Of an unknown outcome the final table decides. */
function exists(facts, { outcome, rows }) {
  return outcome === 'unknown'
    ? rows.some((written) => finalOf(facts, written) !== undefined)
    : outcome === 'committed'
}

function* neverFired({ fired }) {
  if (fired === 0) yield 'the fault did not fire'
}

/** A restored database has what was in its dump, and what was committed later. */
function wasLostByRestore({ restored }, { row }, transaction) {
  return restored !== undefined && transaction.begun < restored.position && !restored.rows.includes(row)
}

function* lost(facts) {
  for (const transaction of facts.transactions.values()) {
    if (!exists(facts, transaction)) continue
    for (const written of transaction.rows) {
      const final = finalOf(facts, written)
      if (final === undefined) {
        if (!wasLostByRestore(facts, written, transaction))
          yield `${nameOf(written)} was committed and is not in the table`
      } else if (final.status === 'PUBLISHED' && !wasAccepted(facts, final)) {
        yield `${nameOf(written)} is PUBLISHED under token ${final.token} of ${final.publishedBy}, and the sink accepted no such attempt`
      }
    }
  }
}

function* lostDeliveriesAndEffects({ deliveries, received, outcomes }) {
  for (const { id, endpoint, eventId, status } of deliveries) {
    if (status === 'delivered' && !received.has(`${endpoint}/${eventId}`))
      yield `delivery ${id} to ${endpoint} is delivered, and did not arrive`
  }
  for (const { of, effects } of outcomes) if (effects === 0) yield `${of} has no effect`
}

function wasAccepted(facts, { row, token, publishedBy }) {
  const accepted = facts.accepted.get(row) ?? []
  // A dump may have been taken after a row was published, and before or after others of its attempts.
  return accepted.some((attempt) => attempt.token === token && attempt.worker === publishedBy)
}

function* rolledBack(facts) {
  for (const [row, attempts] of facts.attempts) {
    const written = facts.written.get(row)
    if (written === undefined) yield `row ${row} was published by ${attempts[0].worker}, and nobody wrote it`
  }
  for (const [row, final] of facts.rows) {
    if (!facts.written.has(row)) yield `${nameOf(final)} is in the table, and nobody wrote it`
  }
  for (const transaction of facts.transactions.values()) {
    const { outcome, rows } = transaction
    const inTable = rows.filter((written) => finalOf(facts, written) !== undefined)
    if (outcome === 'unknown' && inTable.length > 0 && inTable.length < rows.length && !facts.restored)
      yield `of the rows ${numbers(rows)} of one transaction only ${numbers(inTable)} are in the table`
    if (exists(facts, transaction) || wasRestored(facts, transaction)) continue
    for (const { row } of inTable) yield `row ${row} was rolled back and is in the table`
    for (const { row, eventId } of rows)
      if (facts.attempts.get(row)?.some((attempt) => attempt.eventId === eventId))
        yield `row ${row} was rolled back and was published`
  }
}

const numbers = (rows) => rows.map(({ row }) => row).join(', ')
const wasRestored = ({ restored }, { outcome, begun }) =>
  restored !== undefined && outcome === 'unknown' && begun < restored.position

function* stale(facts) {
  if (facts.restored !== undefined) return
  for (const changes of facts.changes.values()) {
    for (const { row, from, to, session, owner, fromToken, isExpiry } of changes) {
      if (from !== 'CLAIMED' || to === 'CLAIMED' || isExpiry) continue
      if (owner !== session)
        yield `row ${row} went from CLAIMED to ${to} by a write of ${session}, while ${owner} held it under token ${fromToken}`
    }
  }
  for (const { worker, row, tokens, outcome } of facts.settled) {
    const final = facts.rows.get(row)
    if (outcome !== 'done' || final === undefined || tokens.some((token) => wasReplayed(facts, row, token)))
      continue
    if (final.status !== 'PUBLISHED' || final.publishedBy !== worker || !tokens.includes(final.token))
      yield `${worker} settled row ${row} under token ${tokens.join(' or ')}, and it is ${final.status} under token ${final.token} of ${final.publishedBy}`
  }
  for (const final of facts.rows.values()) {
    if (final.status !== 'PUBLISHED') continue
    const lease = leaseOf({ row: final.row, token: final.token, worker: final.publishedBy })
    const fencedOff = facts.ended.get(lease)?.some((line) => line.type === 'fencedOff' && !line.isUncertain)
    if (fencedOff)
      yield `${nameOf(final)} is PUBLISHED under token ${final.token} of ${final.publishedBy}, which was fenced off`
  }
}

/** Whether this row was published under this token and replayed later. */
function wasReplayed({ changes }, row, token) {
  return changes.get(row)?.some((change) => isReplay(change) && change.fromToken === token) === true
}

const isReplay = ({ from, to }) => from === 'PUBLISHED' && to === 'PENDING'

function* deadWithoutFailure({ rows, rejected, deliveries, outcomes }) {
  for (const { id, endpoint, status } of deliveries)
    if (status === 'failed') yield `delivery ${id} to ${endpoint} failed, and its endpoint works`
  for (const { of, state } of outcomes) if (state === 'FAILED') yield `${of} failed, and what it needs works`
  for (const final of rows.values()) {
    if (final.status === 'DEAD' && !rejected.has(final.row))
      yield `${nameOf(final)} is DEAD after ${final.attempts} attempts, and the sink never rejected it (${final.lastError})`
  }
}

function* tokensDecreased(facts) {
  if (facts.restored !== undefined) return
  for (const changes of facts.changes.values()) {
    let previous
    for (const { row, from, to, fromToken, toToken } of changes) {
      const grows = from === 'PENDING' && to === 'CLAIMED' ? 1n : 0n
      // The first token of a row is a time.
      if (
        fromToken === '0' && grows === 1n
          ? BigInt(toToken) <= 0n
          : BigInt(toToken) !== BigInt(fromToken) + grows
      )
        yield `the token of row ${row} went from ${fromToken} to ${toToken} (${from} to ${to})`
      if (previous !== undefined && previous !== fromToken)
        yield `the token of row ${row} was ${previous}, and then ${fromToken}`
      previous = toToken
    }
  }
  for (const [row, attempts] of facts.attempts) {
    const final = facts.rows.get(row)
    const workers = new Map()
    for (const { token, worker } of attempts) {
      if (final !== undefined && BigInt(token) > BigInt(final.token))
        yield `row ${row} was published under token ${token}, and its token is ${final.token}`
      if ((workers.get(token) ?? worker) !== worker)
        yield `token ${token} of row ${row} was given to ${workers.get(token)} and to ${worker}`
      workers.set(token, worker)
    }
  }
}

/**
 * Rows of a key are published in the order of their ids, if their transactions did not overlap. An outcome that nobody
 * acknowledged may have been decided at any later time.
 */
function* outOfOrder(facts) {
  if (facts.restored !== undefined) return
  const byKey = new Map()
  for (const written of facts.written.values()) {
    const final = facts.rows.get(written.row)
    if (written.key && final?.status === 'PUBLISHED') append(byKey, written.key, written)
  }
  for (const [key, events] of byKey) {
    events.sort((a, b) => (BigInt(a.row) < BigInt(b.row) ? -1 : 1))
    for (const [index, later] of events.entries()) {
      for (const earlier of events.slice(0, index)) {
        if (!mustPrecede(facts, earlier, later)) continue
        const [first, second] = [earlier, later].map(({ row }) => facts.accepted.get(row)?.[0]?.position)
        if (first !== undefined && second !== undefined && second < first)
          yield `row ${later.row} of key ${key} was published before row ${earlier.row}`
      }
    }
  }
}

function mustPrecede({ transactions }, earlier, later) {
  if (earlier.tx === later.tx) return true
  const { outcome, ended } = transactions.get(earlier.tx)
  return outcome === 'committed' && ended < transactions.get(later.tx).begun
}

function* notTerminal(facts) {
  for (const final of facts.rows.values()) {
    if (!isFinished(final)) yield `${nameOf(final)} is still ${final.status}`
  }
  for (const { id, status } of facts.deliveries)
    if (status === 'pending') yield `delivery ${id} is still pending`
  for (const { of, state } of facts.outcomes)
    if (state !== 'COMPLETED' && state !== 'FAILED') yield `${of} is still ${state}`
  const { calmAt, drainedAt } = facts
  const { leaseMs, reaperMs, marginMs } = facts.run
  const limitMs = leaseMs + reaperMs + marginMs
  if (drainedAt === undefined) yield `not every row was finished ${limitMs} ms after the fault had ended`
  else if (drainedAt - calmAt > limitMs)
    yield `the last row was finished ${drainedAt - calmAt} ms after the fault had ended, and not within ${limitMs} ms`
}

/**
 * An attempt that the sink accepted may be repeated only if its worker died, or has said that it lost the lease or failed,
 * or if the row was replayed.
 */
function* unexplainedDuplicates(facts) {
  for (const { of, effects } of facts.outcomes) if (effects > 1) yield `${of} has its effect ${effects} times`
  const isKnown = new Set(facts.deliveries.map(({ endpoint, eventId }) => `${endpoint}/${eventId}`))
  for (const name of facts.received.keys())
    if (!isKnown.has(name)) yield `${name} arrived, and nobody sent it`
  for (const [row, changes] of facts.changes)
    if (changes.some(isReplay) && !facts.replayed.has(row))
      yield `row ${row} went from PUBLISHED to PENDING, and nobody replayed it`
  for (const [row, accepted] of facts.accepted) {
    const tokens = new Set()
    for (const attempt of accepted) {
      if (tokens.has(attempt.token) && !facts.restored)
        yield `row ${row} was accepted twice under token ${attempt.token}`
      tokens.add(attempt.token)
    }
    const final = facts.rows.get(row)
    for (const attempt of accepted) {
      const isCurrent = attempt.token === final?.token && attempt.worker === final?.publishedBy
      if (isCurrent || facts.died.has(attempt.worker) || facts.ended.has(leaseOf(attempt))) continue
      if (wasReplayed(facts, row, attempt.token)) continue
      if (facts.restored !== undefined && attempt.position < facts.restored.position) continue
      yield `row ${row} was accepted under token ${attempt.token} of ${attempt.worker}, which neither died nor lost it, and counts as published under token ${final?.token}`
    }
  }
}

function* otherEventId(facts) {
  for (const lists of [facts.attempts, facts.accepted]) {
    for (const [row, attempts] of lists) {
      const written = facts.written.get(row)
      const other = attempts.find(({ eventId }) => written !== undefined && eventId !== written.eventId)
      if (other !== undefined)
        yield `row ${row} was published as ${other.eventId} and written as ${written.eventId}`
    }
  }
  for (const { row, eventId } of facts.rows.values()) {
    const written = facts.written.get(row)
    if (written !== undefined && written.eventId !== eventId)
      yield `row ${row} has the event id ${eventId} and was written with ${written.eventId}`
  }
}

function figures({ fired, rows, deliveries, outcomes, accepted, received, calmAt, drainedAt }) {
  let duplicates = 0
  for (const attempts of [...accepted.values(), ...received.values()]) duplicates += attempts.length - 1
  const recoveryMs = drainedAt === undefined ? undefined : drainedAt - calmAt
  return { fired, rows: rows.size + deliveries.length + outcomes.length, duplicates, recoveryMs }
}
