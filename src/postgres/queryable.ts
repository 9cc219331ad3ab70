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

/** Whatever can run several statements as one transaction. */
export interface Pipelined {
  /**
   * Sends the statements to one connection, in one round trip. They are one transaction: if one fails, none has written
   * anything, and `failedStatement` tells which it was. The results are in the order of the statements; the caller names
   * the types of their rows. Each statement is one SQL command.
   */
  // oxlint-disable-next-line typescript/no-unnecessary-type-parameters -- the statements, not the compiler, know the rows
  pipeline<Rows extends object[] = Record<string, unknown>[]>(
    statements: readonly Statement[],
  ): Promise<ResultsOf<Rows>>
}
