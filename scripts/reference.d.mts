export declare function reference(): Promise<{
  readonly files: ReadonlyMap<string, string>
  readonly unused: readonly string[]
  readonly unknown: readonly string[]
}>
