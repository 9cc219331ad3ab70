/**
 * The room for one suspect in this process, shared by all of its workers (D10). A row whose lease expired twice may have
 * killed its process, and may kill this one too; with two suspects in flight, one would cost the other an attempt.
 */
export class SuspectSlot {
  #isTaken = false
  readonly #waiting = new Set<() => void>()

  /** Takes the slot for one claim. False when a suspect, or another claim that may take one, is in flight. */
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
