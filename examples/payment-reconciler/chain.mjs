// A chain that is only simulated: it takes its time, fails now and then, and sometimes answers with nonsense.
import { createHash } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { numberOf } from './settings.mjs'

const NONSENSE = [
  '{"seen": tru',
  '{"seen": true, "confirmations": "many"}',
  'null',
  '<html>Bad gateway</html>',
]

/** What an address will see is decided by its letters: one in ten is never paid. */
function fateOf(address) {
  const [luck = 0, blocks = 0] = createHash('sha256').update(address).digest()
  return { paid: luck >= 26, afterBlocks: blocks % 3 }
}

export function createChain({
  latencyMs = numberOf('CHAIN_LATENCY_MS', 200),
  failures = numberOf('CHAIN_FAILURES', 0.05, { most: 1 }),
  nonsense = numberOf('CHAIN_NONSENSE', 0.02, { most: 1 }),
  blockMs = numberOf('CHAIN_BLOCK_MS', 2_000, { least: 1 }),
  random = Math.random,
} = {}) {
  return {
    /** What there is at an address, as text: whether it is JSON is for the caller to find out. */
    async transfersTo(address, since, signal) {
      await delay(latencyMs * (0.5 + random()), undefined, { signal })
      if (random() < failures) throw new Error('the chain did not answer')
      if (random() < nonsense) return NONSENSE[Math.floor(random() * NONSENSE.length)]
      const { paid, afterBlocks } = fateOf(address)
      const confirmations = Math.floor((Date.now() - since.getTime()) / blockMs) - afterBlocks
      if (!paid || confirmations < 0) return '{"seen": false}'
      return JSON.stringify({ seen: true, confirmations, txHash: this.hashOf(`tx ${address}`) })
    },

    hashOf: (text) => `0x${createHash('sha256').update(text).digest('hex').slice(0, 40)}`,
  }
}
