/**
 * The room for one suspect in this process, shared by all of its workers (D10). A row under which two processes have
 * died may kill this one too; with two of them in flight, one would cost the other an attempt.
 */
export class SuspectSlot {
  #isTaken = false
  readonly #waiting = new Set<() => void>()

  /** For one claim. False when a suspect is in flight, or another claim that may take one. */
  take(): boolean {
    if (this.#isTaken) return false
    this.#isTaken = true
    return true
  }

  /** The claim has taken no suspect, or the suspect is no longer in flight. */
  free(): void {
    this.#isTaken = false
    const waiting = [...this.#waiting]
    this.#waiting.clear()
    for (const listener of waiting) listener()
  }

  /** Calls the listener once, as soon as the slot is free. */
  whenFree(listener: () => void): void {
    if (this.#isTaken) this.#waiting.add(listener)
    else listener()
  }
}
