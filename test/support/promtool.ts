import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { text } from 'node:stream/consumers'
import { beforeAll, beforeEach } from 'vitest'
import { findProgram } from './brokers/broker.ts'

export interface Promtool {
  /** Runs it, and throws with everything that it printed if it does not succeed. Returns its output. */
  run(args: readonly string[], input?: string): Promise<string>
}

const MISSING = 'promtool is not installed. To run these tests: apt-get install prometheus'

/**
 * The program by which Prometheus checks rules and metrics. Where it is not installed, the tests around it
 * are skipped and the reason is printed; with LEASEHOLD_REQUIRE_BROKERS=1, as in CI, they fail.
 */
export function usePromtool(): Promtool {
  let program: string | undefined

  beforeAll(async () => {
    program = await findProgram('promtool')
    if (program !== undefined) return
    if (process.env['LEASEHOLD_REQUIRE_BROKERS'] === '1') throw new Error(MISSING)
    process.stderr.write(`skipped: ${MISSING}\n`)
  })

  beforeEach((context) => {
    if (program === undefined) context.skip(MISSING)
  })

  return {
    async run(args, input = '') {
      const child = spawn(program ?? '', args, { stdio: ['pipe', 'pipe', 'pipe'] })
      const ended = once(child, 'close')
      child.stdin.end(input)
      const [output, errors, [code]] = await Promise.all([text(child.stdout), text(child.stderr), ended])
      if (code !== 0) throw new Error(`promtool ${args.join(' ')}: ${output}${errors}`)
      return output + errors
    },
  }
}
