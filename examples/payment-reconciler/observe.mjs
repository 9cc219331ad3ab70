import { openSync, writeSync } from 'node:fs'

/** From so many on, a payment is there to stay. */
const CONFIRMED = 2

/** Observes the payment of a request, and says what its status should be. */
export function observer(chain, watch = (_id, observe) => observe()) {
  return async ({ id, address, status, created_at: since, expires_at: until }, { signal }) =>
    watch(id, async () => {
      const { seen, confirmations, txHash } = read(await chain.transfersTo(address, since, signal))
      if (!seen) return until <= new Date() ? 'expired' : undefined
      if (status === 'pending') return { status: 'detected', values: { tx_hash: txHash } }
      return confirmations >= CONFIRMED ? 'confirmed' : undefined
    })
}

/** What is thrown counts as an error, and the request stays open. */
function read(text) {
  const answer = JSON.parse(text)
  if (answer?.seen === false) return answer
  if (answer?.seen === true && Number.isInteger(answer.confirmations)) return answer
  throw new TypeError(`the chain answered with nonsense: ${text}`)
}

/**
 * Writes down when each observation began and ended, on the clock that all processes of a machine share. Each line is handed
 * to the system at once: what was written before a SIGKILL is there.
 */
export function journal(path) {
  if (!path) return undefined
  const file = openSync(`${path}.${process.pid}`, 'a')
  const write = (what, id) => writeSync(file, `${what} ${id} ${process.hrtime.bigint()}\n`)
  return async (id, observe) => {
    write('begin', id)
    try {
      return await observe()
    } finally {
      write('end', id)
    }
  }
}
