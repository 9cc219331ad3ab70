/** One statement as `pg` takes it; a name makes it a prepared statement on its connection. */
export interface Statement {
  readonly name?: string
  readonly text: string
  readonly values?: readonly unknown[]
  /** Rows as arrays of their values, in the order of the statement. */
  readonly rowMode?: 'array'
}

export interface Result<Row> {
  readonly rows: Row[]
  readonly rowCount: number | null
}

/**
 * Whatever can run one statement: a `pg` client or pool of the user's, our `Database`, a transaction.
 * The rows are what the statement says they are; the caller names their type.
 */
export interface Queryable {
  // oxlint-disable-next-line typescript/no-unnecessary-type-parameters -- the statement, not the compiler, knows the row
  query<Row extends object = Record<string, unknown>>(statement: Statement): Promise<Result<Row>>
}

/** The results of several statements, by the types of their rows. */
export type ResultsOf<Rows extends object[]> = { [Index in keyof Rows]: Result<Rows[Index]> }
