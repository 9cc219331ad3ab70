import type { Database } from '../../../src/postgres/database.ts'
import type { Queryable, Statement } from '../../../src/postgres/queryable.ts'

/** A piece of the kernel's SQL, and what stands there instead, in the statements with these names. */
export interface Breakage {
  readonly statements: RegExp
  readonly piece: string
  readonly instead: string
}

/** A database to which the kernel's statements come with a piece missing. */
export function breakDatabase(db: Database, breakage: Breakage): Database {
  return {
    ...breakQueryable(db, breakage),
    transaction: async (work, options) =>
      db.transaction(async (tx) => work(breakQueryable(tx, breakage)), options),
    close: async () => db.close(),
  }
}

function breakQueryable(db: Queryable, breakage: Breakage): Queryable {
  return { query: async (statement) => db.query(broken(statement, breakage)) }
}

/** Refuses a statement without the piece: the kernel says it differently now, and the test must follow. */
function broken(statement: Statement, { statements, piece, instead }: Breakage): Statement {
  if (statement.name === undefined || !statements.test(statement.name)) return statement
  if (!statement.text.includes(piece)) throw new Error(`${statement.name} no longer says: ${piece}`)
  return { ...statement, text: statement.text.replaceAll(piece, instead) }
}
