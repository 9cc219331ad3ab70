/** The keys whose lines the next statement looks at again. A statement that fails has looked at none. */
export class LinesToLookAt {
  readonly #keys = new Set<string>()

  get isEmpty(): boolean {
    return this.#keys.size === 0
  }

  add(keys: readonly string[]): void {
    for (const key of keys) this.#keys.add(key)
  }

  /** Hands all of them to the work, and takes them back when it fails. */
  async spend<Result>(work: (keys: readonly string[]) => Promise<Result>): Promise<Result> {
    const keys = [...this.#keys]
    this.#keys.clear()
    try {
      return await work(keys)
    } catch (error) {
      this.add(keys)
      throw error
    }
  }
}
