// The table of faults, in the order in which they are run.
import sigkill from './cases/sigkill.mjs'
import sigstop from './cases/sigstop.mjs'
import lateWrites from './cases/late-writes.mjs'
import blockedLoop from './cases/blocked-loop.mjs'
import terminate from './cases/terminate.mjs'
import postmaster from './cases/postmaster.mjs'
import cut from './cases/cut.mjs'
import lostCommit from './cases/lost-commit.mjs'
import halfOpen from './cases/half-open.mjs'
import workerClock from './cases/worker-clock.mjs'
import databaseClock from './cases/database-clock.mjs'
import outOfOrder from './cases/out-of-order.mjs'
import brokerAck from './cases/broker-ack.mjs'
import webhooks from './cases/webhooks.mjs'
import syncCrash from './cases/sync-crash.mjs'
import reconcile from './cases/reconcile.mjs'
import rollingDeploy from './cases/rolling-deploy.mjs'
import diskFull from './cases/disk-full.mjs'
import sqlErrors from './cases/sql-errors.mjs'
import poison from './cases/poison.mjs'
import lockedRows from './cases/locked-rows.mjs'
import statementTimeout from './cases/statement-timeout.mjs'
import maxConnections from './cases/max-connections.mjs'
import readOnly from './cases/read-only.mjs'
import restore from './cases/restore.mjs'
import { stormFor } from './cases/storm.mjs'
import { soakFor } from './cases/soak.mjs'

const SOAK_MS = { inTable: 60_000, alone: 600_000 }
const STORM_EVENTS = 6_000

export const FAULTS = [
  sigkill,
  sigstop,
  lateWrites,
  blockedLoop,
  terminate,
  postmaster,
  cut,
  lostCommit,
  halfOpen,
  workerClock,
  databaseClock,
  outOfOrder,
  brokerAck,
  webhooks,
  syncCrash,
  reconcile,
  rollingDeploy,
  diskFull,
  sqlErrors,
  poison,
  lockedRows,
  statementTimeout,
  maxConnections,
  readOnly,
  restore,
  stormFor(STORM_EVENTS),
  soakFor(SOAK_MS.inTable),
]

export const SOAK = soakFor(SOAK_MS.alone)
export { stormFor }

/** All faults, or those that are named. */
export function faultsNamed(names) {
  if (names === undefined) return FAULTS
  return names.split(',').map((name) => {
    const found = FAULTS.find((fault) => fault.name === name)
    if (found === undefined)
      throw new Error(
        `--only names "${name}", which is none of ${FAULTS.map((fault) => fault.name).join(', ')}`,
      )
    return found
  })
}
