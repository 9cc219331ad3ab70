import type { Lease } from './lease.ts'
import { LARGEST_NOTE } from './note-sql.ts'

/** One note of a claim, and how many of its leases have not ended. */
interface Note {
  readonly id: string
  readonly of: ClaimNotes
  left: number
}

/** A lease that knows its note. A copy does not: what becomes of that one is left to the reaper. */
class NotedLease implements Lease {
  readonly id: string
  readonly owner: string
  readonly token: bigint
  readonly until: Date
  #note: Note | undefined

  constructor(id: string, owner: string, token: bigint, until: Date, note: Note | undefined) {
    this.id = id
    this.owner = owner
    this.token = token
    this.until = until
    this.#note = note
  }

  /** The id of its note if this was the last of the leases. A lease ends once, however often it is said. */
  static end(lease: Lease, notes: ClaimNotes): string | undefined {
    const note = #note in lease ? lease.#note : undefined
    if (note?.of !== notes || !(lease instanceof NotedLease)) return undefined
    lease.#note = undefined
    note.left -= 1
    return note.left === 0 ? note.id : undefined
  }
}

export type MakeLease = (id: string, owner: string, token: bigint, until: Date) => Lease

/** The notes of one store's claims. Those whose leases have all ended are removed by its next claim. */
export class ClaimNotes {
  #finished: string[] = []

  /**
   * Makes the leases of a claim that has so many, and these notes, each of which names as many as fit. Rows mostly come
   * back in the order in which they were noted; where not, a note is taken for finished too early, and stays.
   */
  leases(ids: readonly string[], count: number): MakeLease {
    const notes = ids.map((id, i) => ({
      id,
      of: this,
      left: Math.min(LARGEST_NOTE, count - i * LARGEST_NOTE),
    }))
    let made = 0
    return (id, owner, token, until) => {
      const note = notes[Math.floor(made / LARGEST_NOTE)]
      made += 1
      return new NotedLease(id, owner, token, until, note)
    }
  }

  /**
   * Settled, released or fenced off, by a statement of this store that has committed or by the one that is to remove
   * the notes.
   */
  ended(leases: readonly Lease[]): void {
    for (const lease of leases) {
      const finished = NotedLease.end(lease, this)
      if (finished !== undefined) this.#finished.push(finished)
    }
  }

  /** Hands the finished ones to the work, and takes them back when it fails: then it has removed none. */
  async spend<Result>(work: (finished: readonly string[]) => Promise<Result>): Promise<Result> {
    const finished = this.#finished
    this.#finished = []
    try {
      return await work(finished)
    } catch (error) {
      this.#finished.push(...finished)
      throw error
    }
  }
}
