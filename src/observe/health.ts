/** One thing that must be true for this process to do its work. */
export interface Check {
  readonly name: string
  /** Says what it found, or throws what is wrong. */
  run(): Promise<string>
}

export interface CheckResult {
  readonly name: string
  readonly ok: boolean
  readonly detail: string
}

export interface Health {
  /** Runs every check at once; never rejects, and never takes longer than the timeout. */
  examine(): Promise<readonly CheckResult[]>
}

const TIMEOUT_MS = 3_000

/** A check that still runs is joined, not started again: however often it is asked for, it costs one connection. */
export function createHealth(checks: readonly Check[], timeoutMs = TIMEOUT_MS): Health {
  const running = new Map<Check, Promise<CheckResult>>()

  async function join(check: Check): Promise<CheckResult> {
    const present = running.get(check)
    if (present !== undefined) return present
    const started = outcome(check).finally(() => running.delete(check))
    running.set(check, started)
    return started
  }

  async function examineOne(check: Check): Promise<CheckResult> {
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<CheckResult>((resolve) => {
      const detail = `no answer within ${timeoutMs} ms`
      timer = setTimeout(() => resolve({ name: check.name, ok: false, detail }), timeoutMs)
    })
    try {
      return await Promise.race([join(check), late])
    } finally {
      clearTimeout(timer)
    }
  }

  return { examine: async () => Promise.all(checks.map(examineOne)) }
}

async function outcome(check: Check): Promise<CheckResult> {
  try {
    return { name: check.name, ok: true, detail: await check.run() }
  } catch (error) {
    return { name: check.name, ok: false, detail: error instanceof Error ? error.message : String(error) }
  }
}
