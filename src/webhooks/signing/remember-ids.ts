import { LeaseholdError } from '../../errors.ts'

/**
 * Says whether this request has been here before, and remembers it until then. `requestId` names one attempt, not the
 * event: see `VerifyOptions.seen`.
 */
export type Seen = (requestId: string, until: Date) => boolean | Promise<boolean>

export interface RememberIdsOptions {
  /** The most to remember. When there are more the oldest is forgotten, and could be replayed. Default 100000. */
  readonly max?: number
  readonly now?: () => number
}

/** A memory of this process: enough for one receiver, while several behind one address need a shared one. */
export function rememberIds({ max = 100_000, now = Date.now }: RememberIdsOptions = {}): (
  requestId: string,
  until: Date,
) => boolean {
  if (!Number.isSafeInteger(max) || max < 1) {
    throw new LeaseholdError('SETTING_INVALID', `The option max of rememberIds is ${max}.`, {
      remedy: 'Give a whole number of at least 1.',
    })
  }
  const remembered = new Map<string, number>()
  return (requestId, until) => {
    const at = now()
    // In the order in which they came, which is nearly that in which they end.
    for (const [id, end] of remembered) {
      if (end > at) break
      remembered.delete(id)
    }
    if (remembered.has(requestId)) return true
    if (remembered.size >= max) forgetOldest(remembered)
    remembered.set(requestId, until.getTime())
    return false
  }
}

function forgetOldest(remembered: Map<string, number>): void {
  for (const id of remembered.keys()) {
    remembered.delete(id)
    return
  }
}
