import type { DeliveryFilter } from './filter.ts'

/** What an operator says of a change to deliveries: which, who and why. */
export interface Change {
  readonly schema?: string | undefined
  /** Numbers of deliveries and event ids. With a filter as well, what is in both. */
  readonly ids?: readonly string[] | undefined
  readonly filter?: DeliveryFilter | undefined
  /** Counts, and changes nothing. */
  readonly dryRun?: boolean | undefined
  /** No more than so many, the oldest first. */
  readonly limit?: number | undefined
  /** Who asks for it. A dry run needs neither this nor a reason. */
  readonly principal?: string | undefined
  readonly reason?: string | undefined
}

/** For those who want to follow a change, and to stop it. */
export interface Following {
  /** Stops after the batch that is being written. */
  readonly signal?: AbortSignal | undefined
  /** Called after each batch; the next one waits for it. */
  readonly onProgress?: ((progress: ChangeProgress) => void | Promise<void>) | undefined
}

export interface ChangeProgress {
  readonly matched: number
  readonly changed: number
}

/** The one delivery, event or endpoint that is meant, if it is one. */
export function targetOf({ ids, endpoint }: DeliveryFilter): string | null {
  return (ids?.length === 1 ? ids[0] : endpoint) ?? null
}
