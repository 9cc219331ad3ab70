import type { SuspectRoom } from '../../lease/store.ts'

/** How many suspects a process runs at once at most, however many have ended well. */
const MAX_SUSPECTS = 16

/**
 * The room for suspects in this process, shared by all of its workers (D10). A row whose lease expired twice may have
 * killed its process, and may kill this one too. So one runs at first; each that ends well doubles how many may run at once,
 * and a process that dies is followed by one that begins anew. One that has expired more often than twice, or is at its last
 * attempt, always runs alone: so a death in company costs an innocent row one more attempt, never a second one or its last.
 */
export class SuspectSlot {
  /** How many have ended without a death. */
  #survived = 0
  #inFlight = 0
  /** One that runs alone is in flight. */
  #isAlone = false
  /** A claim that may take suspects is on its way. */
  #isClaiming = false
  readonly #waiting = new Set<() => void>()

  /** The room for one claim, which has it until `claimed`. Undefined: there is none, or another claim has it. */
  take(): SuspectRoom | undefined {
    const suspects = this.#isAlone ? 0 : this.#allowed - this.#inFlight
    if (this.#isClaiming || suspects <= 0) return undefined
    this.#isClaiming = true
    return { suspects, alone: this.#inFlight === 0 }
  }

  /** The claim that had the room has taken so many suspects. */
  claimed(count: number, isAlone = false): void {
    this.#isClaiming = false
    this.#inFlight += count
    if (count > 0) this.#isAlone = isAlone
    if (count === 0) this.#tell()
  }

  /** A suspect is no longer in flight. `survived`: its handler has returned. */
  ended(survived: boolean): void {
    this.#inFlight -= 1
    this.#isAlone = false
    if (survived) this.#survived += 1
    this.#tell()
  }

  /** Calls the listener once: as soon as a suspect has ended, or now, if none is in flight. */
  whenFree(listener: () => void): void {
    if (this.#isClaiming || this.#inFlight > 0) this.#waiting.add(listener)
    else listener()
  }

  get #allowed(): number {
    return Math.min(MAX_SUSPECTS, 2 ** this.#survived)
  }

  #tell(): void {
    const waiting = [...this.#waiting]
    this.#waiting.clear()
    for (const listener of waiting) listener()
  }
}
