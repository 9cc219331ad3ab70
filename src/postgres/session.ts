import type { PoolClient, QueryResult } from 'pg'
import { LeaseholdError } from '../errors.ts'
import { cancelStatement } from './cancel.ts'
import { deadline } from './deadline.ts'
import {
  endsConnection,
  isInFailedTransaction,
  isPreparedStatementMismatch,
  isStalePreparedStatement,
  isUnavailable,
  unavailable,
} from './failures.ts'
import type { Queryable, Result, Statement } from './queryable.ts'

export type DatabaseEvent =
  /** A connection broke, in use or idle. The pool opens another one when it is needed. */
  | { readonly type: 'connectionLost'; readonly error: Error }
  /** A statement outlived its timeout; its connection was destroyed. */
  | { readonly type: 'queryTimedOut'; readonly text: string; readonly timeoutMs: number }
  /** Behind the URL is a pooler without prepared statements: names are no longer sent. */
  | { readonly type: 'preparedStatementsOff'; readonly error: Error }

/** What the sessions of one database have in common. */
export interface SessionContext {
  /** Whether statement names are sent; one session that meets a pooler turns it off for all. */
  readonly naming: { on: boolean }
  readonly emit: (event: DatabaseEvent) => void
}

/** Longer than any statement of ours takes with a good plan; planning again costs a millisecond. */
const SUSPICIOUSLY_LONG_MS = 100

/**
 * One client from its checkout until it is given back or destroyed. For that time it has an `error` listener
 * (without one, a broken connection would end the process), and its statements run one after the other.
 */
export class Session implements Queryable {
  readonly #client: PoolClient
  readonly #context: SessionContext
  readonly #timeoutMs: number
  readonly #onClientError = (error: Error): void => {
    this.#lose(unavailable(error))
  }
  #released = false
  /** Set once the connection cannot be used any more; what every later statement rejects with. */
  #failure: LeaseholdError | undefined
  #reusable = true
  #lastSqlError: unknown
  #last: Promise<unknown> = Promise.resolve()

  constructor(client: PoolClient, timeoutMs: number, context: SessionContext) {
    this.#client = client
    this.#timeoutMs = timeoutMs
    this.#context = context
    client.on('error', this.#onClientError)
  }

  async query<Row extends object>(statement: Statement): Promise<Result<Row>> {
    const turn = this.#last.then(async () => this.#run<Row>(statement))
    this.#last = turn.catch(() => undefined)
    return turn
  }

  /** A statement outside any transaction: nothing has run when its name is refused, so it can be sent again. */
  async queryAlone<Row extends object>(statement: Statement): Promise<Result<Row>> {
    const startedAt = performance.now()
    try {
      const result = await this.query<Row>(statement)
      if (performance.now() - startedAt > SUSPICIOUSLY_LONG_MS) await this.#planAnew(statement)
      return result
    } catch (error) {
      const refused = isPreparedStatementMismatch(error) || isStalePreparedStatement(error)
      if (statement.name === undefined || !refused) throw error
      return this.query<Row>(withoutName(statement))
    }
  }

  /**
   * A prepared statement keeps the plan it was given when its table was small, until statistics are gathered again.
   * One that has become slow is planned anew the next time: a claim planned for 5 rows took 1,300 ms on 500,000.
   */
  async #planAnew({ name }: Statement): Promise<void> {
    if (name !== undefined && this.#context.naming.on) await this.query({ text: 'discard plans' })
  }

  /** Commits, and rejects in every case in which the commit is not certain. */
  async commit(): Promise<void> {
    const result = await this.#run({ text: 'commit' }, 'Whether the transaction was committed is unknown.')
    // PostgreSQL answers the COMMIT of a failed transaction with ROLLBACK, and with no error.
    if (result.command !== 'ROLLBACK') return
    throw this.#lastSqlError ?? new Error('The transaction had failed and was rolled back.')
  }

  /** Gives the client back to the pool, or destroys it when it is not as good as new. */
  end(): void {
    const idle = this.#client.getTransactionStatus() === 'I'
    this.#release(this.#failure === undefined && this.#reusable && idle)
  }

  /** Ends the session now, whatever runs in it; that and all that follows rejects with the error. */
  destroy(error: LeaseholdError): void {
    this.#failure ??= error
    this.#release(false)
  }

  async #run<Row extends object>(statement: Statement, whenUncertain = ''): Promise<QueryResult<Row>> {
    if (this.#failure !== undefined) throw this.#failure
    if (this.#released) {
      throw new LeaseholdError(
        'DATABASE_CLOSED',
        `A statement came after the end of its transaction: ${brief(statement)}.`,
        {
          remedy: 'Await every statement inside the function given to transaction().',
        },
      )
    }
    const config = this.#context.naming.on ? statement : withoutName(statement)
    // Sent before the timer starts: should `pg` throw, no timer is left to end somebody else's session.
    const answer = this.#client.query({ ...config, values: [...(config.values ?? [])] })
    return new Promise((resolve, reject) => {
      const bound = deadline(this.#timeoutMs, () => {
        reject(this.#timeOut(statement, whenUncertain))
      })
      answer
        .then(resolve, (error: unknown) => {
          reject(this.#classify(error, statement, whenUncertain))
        })
        .finally(() => bound.cancel())
    })
  }

  #timeOut(statement: Statement, whenUncertain: string): LeaseholdError {
    const timeoutMs = this.#timeoutMs
    const error = new LeaseholdError(
      'QUERY_TIMEOUT',
      [
        `A statement did not finish within queryTimeoutMs = ${timeoutMs} ms:`,
        `${brief(statement)}.`,
        whenUncertain,
      ]
        .join(' ')
        .trim(),
      {
        remedy:
          'Its connection was closed. Look for what it waited on (locks, a slow network), or raise queryTimeoutMs.',
      },
    )
    // The server would go on with it, and keep its locks, until it next writes to the closed socket.
    cancelStatement(this.#client)
    this.destroy(error)
    this.#context.emit({ type: 'queryTimedOut', text: statement.text, timeoutMs })
    return error
  }

  #classify(error: unknown, statement: Statement, whenUncertain: string): unknown {
    if (isUnavailable(error)) this.#lose(unavailable(error))
    const failure = this.#failure
    if (failure !== undefined) {
      if (whenUncertain === '') return failure
      const message = `The connection ended during ${brief(statement)}. ${whenUncertain}`
      return new LeaseholdError(failure.code, message, { cause: failure.cause ?? failure })
    }
    if (endsConnection(error)) this.#lose(unavailable(error))
    if (isStalePreparedStatement(error)) this.#reusable = false
    if (isPreparedStatementMismatch(error) && statement.name !== undefined) this.#stopNaming(error)
    if (!isInFailedTransaction(error)) this.#lastSqlError = error
    return error
  }

  #stopNaming(error: unknown): void {
    if (!this.#context.naming.on || !(error instanceof Error)) return
    this.#context.naming.on = false
    this.#context.emit({ type: 'preparedStatementsOff', error })
  }

  #lose(failure: LeaseholdError): void {
    if (this.#failure !== undefined) return
    this.#failure = failure
    this.#context.emit({ type: 'connectionLost', error: failure })
  }

  #release(reusable: boolean): void {
    if (this.#released) return
    this.#released = true
    this.#client.release(!reusable)
    // Only now: from release() on, the pool listens itself.
    this.#client.removeListener('error', this.#onClientError)
    // release(true) says goodbye politely when nothing runs, and a network that swallows bytes never answers.
    if (!reusable) this.#client.connection.stream.destroy()
  }
}

function withoutName(statement: Statement): Statement {
  const { name: _, ...rest } = statement
  return rest
}

/** Enough of a statement to find it; never its values. */
function brief(statement: Statement): string {
  const text = statement.name ?? statement.text.replaceAll(/\s+/g, ' ').trim()
  return text.length > 80 ? `${text.slice(0, 80)}…` : text
}
