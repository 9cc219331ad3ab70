import type { EventEmitter } from 'node:events'
import type { Duplex } from 'node:stream'
import { Connection, type Client, type PoolClient, type QueryResult } from 'pg'
import { LeaseholdError } from '../errors.ts'
import { deadline } from '../timeout.ts'
import { endOnUnreadable } from './client.ts'
import {
  endsConnection,
  isInFailedTransaction,
  isPreparedStatementMismatch,
  isReadOnly,
  isStalePreparedStatement,
  isUnavailable,
  unavailable,
} from './failures.ts'
import { explainRefusal, type NeededRole } from './permissions.ts'
import { Pipeline } from './pipeline.ts'
import type { Queryable, Result, Statement } from './queryable.ts'

export type DatabaseEvent =
  /** A connection broke, in use or idle. The pool opens another one when it needs one. */
  | { readonly type: 'connectionLost'; readonly error: Error }
  /** A statement exceeded its timeout, and its connection was destroyed. */
  | { readonly type: 'queryTimedOut'; readonly text: string; readonly timeoutMs: number }
  /** The URL leads to a pooler without prepared statements. Statement names are no longer sent. */
  | { readonly type: 'preparedStatementsOff'; readonly error: Error }

/** What the sessions of one database share. */
export interface SessionContext {
  /** Whether statement names are sent. The first session that detects a pooler turns it off for all sessions. */
  readonly naming: { on: boolean }
  /** Which role its statements need, for the error where one is denied. */
  readonly neededRole?: NeededRole | undefined
  readonly emit: (event: DatabaseEvent) => void
  /** Is called with the client of a server that takes no writes. */
  readonly leave: (client: PoolClient) => void
  /** Is called after every answer, of a connection that is lost as well. */
  readonly answered: (client: PoolClient) => void
  /** Is called when a statement was not answered in time, with the time it was sent at (`performance.now()`). */
  readonly unanswered: (sentAt: number) => void
}

/** No statement of ours takes this long with a good plan, and planning it once more costs a millisecond. */
const SLOW_STATEMENT_MS = 100

/** The plans of a connection are made anew after this many uses of prepared statements, then after eight times as many, and so on. */
const REPLAN_AFTER = 50
const REPLAN_FACTOR = 8

/** How often each connection was used with prepared statements, and at how many uses its plans are made anew. */
const uses = new WeakMap<PoolClient, { count: number; replanAt: number }>()

const CANCEL_TIMEOUT_MS = 5_000

/**
 * One client from its checkout until it is returned to the pool or destroyed. During this time it has an `error`
 * listener, because without one a broken connection would end the process, and its statements run one after the other.
 */
export class Session implements Queryable {
  readonly #client: PoolClient
  readonly #context: SessionContext
  readonly #timeoutMs: number
  readonly #onClientError = (error: Error): void => {
    this.#lose(unavailable(error))
  }
  #released = false
  /** Set once the connection cannot be used any more. Every later statement rejects with it. */
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

  /** Runs a statement outside any transaction. */
  async queryAlone<Row extends object>(statement: Statement): Promise<Result<Row>> {
    return this.#alone([statement], async ([only = statement]) => this.query<Row>(only))
  }

  /** Runs statements as one transaction, in one round trip. The session must not be used for anything else meanwhile. */
  async pipelineAlone(statements: readonly Statement[]): Promise<Result<object>[]> {
    return this.#alone(statements, async (sent) => this.#runPipeline(sent))
  }

  /** If a name is refused, nothing has been written, and the statements are sent once more. */
  async #alone<Answer>(
    statements: readonly Statement[],
    run: (statements: readonly Statement[]) => Promise<Answer>,
  ): Promise<Answer> {
    const isNamed = statements.some(({ name }) => name !== undefined)
    const startedAt = performance.now()
    try {
      const answer = await run(statements)
      if (isNamed && this.#arePlansOutdated(startedAt)) await this.#discardPlans()
      return answer
    } catch (error) {
      const refused = isPreparedStatementMismatch(error) || isStalePreparedStatement(error)
      if (!isNamed || !refused) throw error
      return run(statements.map(withoutName))
    }
  }

  /**
   * A prepared statement keeps the plan that was made when its table was small, until the statistics are updated: a claim
   * planned for 5 rows took 1,300 ms on 500,000. So a slow statement is planned again the next time. The plan for an empty
   * table reads all of it: with a few thousand rows no statement is slow, and a claim costs four times as much. So all are
   * planned again as the connection is used.
   */
  #arePlansOutdated(sentAt: number): boolean {
    const used = uses.get(this.#client) ?? { count: 0, replanAt: REPLAN_AFTER }
    uses.set(this.#client, used)
    used.count += 1
    const isDue = used.count >= used.replanAt
    if (isDue) used.replanAt *= REPLAN_FACTOR
    return isDue || performance.now() - sentAt > SLOW_STATEMENT_MS
  }

  async #discardPlans(): Promise<void> {
    if (!this.#context.naming.on) return
    // The statement itself has succeeded, and that is what its caller is told.
    await this.query({ text: 'discard plans' }).catch(() => undefined)
  }

  /** Commits. Rejects whenever it is not certain that the transaction was committed. */
  async commit(): Promise<void> {
    const result = await this.#run({ text: 'commit' }, 'Whether the transaction was committed is unknown.')
    // PostgreSQL answers the COMMIT of a failed transaction with ROLLBACK instead of an error.
    if (result.command !== 'ROLLBACK') return
    throw this.#lastSqlError ?? new Error('The transaction had failed and was rolled back.')
  }

  /** Returns the client to the pool, or destroys it if its connection is not in a clean state. */
  end(): void {
    const idle = this.#client.getTransactionStatus() === 'I'
    this.#release(this.#failure === undefined && this.#reusable && idle)
  }

  /** Ends the session now. The running statement and all later ones reject with the error. */
  destroy(error: LeaseholdError): void {
    this.#failure ??= error
    this.#release(false)
  }

  /** Cancels the running statement and ends the session. */
  abort(): void {
    cancelStatement(this.#client)
    this.destroy(
      new LeaseholdError(
        'QUERY_TIMEOUT',
        'The transaction was stopped, because nobody waits for it any more.',
      ),
    )
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
    const answer = this.#client.query<Row>({ ...config, values: [...(config.values ?? [])] })
    return this.#inTime(answer, { current: statement, whole: statement }, whenUncertain)
  }

  async #runPipeline(statements: readonly Statement[]): Promise<Result<object>[]> {
    if (this.#failure !== undefined) throw this.#failure
    const sent = this.#context.naming.on ? statements : statements.map(withoutName)
    const pipeline = this.#client.query(new Pipeline(this.#client, sent))
    try {
      return await this.#inTime(pipeline.answer, pipeline)
    } catch (error) {
      pipeline.locate(error)
      throw error
    }
  }

  /** The answer to what has just been sent. The timer starts after that: if `pg` throws, none remains to end the next session. */
  async #inTime<Answer>(
    answer: Promise<Answer>,
    sent: Pick<Pipeline, 'current' | 'whole'>,
    whenUncertain = '',
  ): Promise<Answer> {
    const sentAt = performance.now()
    return new Promise((resolve, reject) => {
      const bound = deadline(this.#timeoutMs, () => {
        this.#context.unanswered(sentAt)
        reject(this.#timeOut(sent.whole, whenUncertain))
      })
      answer
        .then(resolve, (error: unknown) => {
          reject(this.#classify(error, sent.current, whenUncertain))
        })
        .finally(() => {
          bound.cancel()
          this.#context.answered(this.#client)
        })
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
          'Its connection was closed. Find out what it waited for (locks, a slow network), or raise queryTimeoutMs.',
      },
    )
    // Otherwise the server would continue the statement, with its locks, until it next writes to the closed socket.
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
    if (isReadOnly(error)) this.#leave()
    if (isPreparedStatementMismatch(error) && statement.name !== undefined) this.#stopNaming(error)
    const explained = explainRefusal(error, {
      text: statement.text,
      role: this.#client.user,
      needs: this.#context.neededRole,
    })
    if (!isInFailedTransaction(error)) this.#lastSqlError = explained
    return explained
  }

  #stopNaming(error: unknown): void {
    if (!this.#context.naming.on || !(error instanceof Error)) return
    this.#context.naming.on = false
    this.#context.emit({ type: 'preparedStatementsOff', error })
  }

  /**
   * A standby, or a primary that was made read-only, has been replaced by another server, or will be. The URL leads to
   * that one: by its next host, by its name, or by its address.
   */
  #leave(): void {
    this.#reusable = false
    this.#context.leave(this.#client)
  }

  #lose(failure: LeaseholdError): void {
    if (this.#failure !== undefined) return
    this.#failure = failure
    // The client reads nothing more, and who waits until the server is ready would wait for ever.
    this.#client.connection.stream.destroy()
    this.#context.emit({ type: 'connectionLost', error: failure })
  }

  #release(reusable: boolean): void {
    if (this.#released) return
    this.#released = true
    this.#client.release(!reusable)
    // After release(), because from then on the pool has its own listener.
    this.#client.removeListener('error', this.#onClientError)
    // release(true) waits for the server to close an idle connection, and a network that drops packets never answers.
    if (!reusable) this.#client.connection.stream.destroy()
  }
}

function withoutName(statement: Statement): Statement {
  const { name: _, ...rest } = statement
  return rest
}

/** Enough of a statement to find it. Values are left out: they may be secret. */
function brief(statement: Statement): string {
  const text = statement.name ?? statement.text.replaceAll(/\s+/g, ' ').trim()
  return text.length > 80 ? `${text.slice(0, 80)}…` : text
}

/** The part of `pg.Connection` and `pg.Client` that their types leave out. */
interface CancelConnection extends EventEmitter {
  readonly stream: Duplex & { setTimeout(ms: number, listener: () => void): void; unref(): void }
  connect(portOrPath: number | string, host?: string): void
  requestSsl(): void
  cancel(processId: number, secretKey: number): void
}

interface BackendKey {
  readonly processID: number | null
  readonly secretKey: number | null
}

/**
 * Asks the server to cancel the statement that runs on this client's connection. The protocol requires a connection
 * of its own for that; it is encrypted when the client's is. This is a best effort: nobody waits for it, and a failure
 * is not reported, because the statement has already been given up.
 */
function cancelStatement(client: Client): void {
  // oxlint-disable-next-line typescript/no-unsafe-type-assertion -- `pg` keeps the backend's key here; its types do not say so
  const { processID, secretKey } = client as unknown as BackendKey
  if (processID === null || secretKey === null) return
  // oxlint-disable-next-line typescript/no-unsafe-type-assertion -- @types/pg leaves connect() and cancel() out
  const connection = new Connection({ ssl: client.ssl }) as Connection & CancelConnection
  endOnUnreadable(connection)
  const { stream } = connection
  const send = (): void => connection.cancel(processID, secretKey)
  connection.on('error', () => stream.destroy())
  connection.once('connect', () => (client.ssl ? connection.requestSsl() : send()))
  connection.once('sslconnect', send)
  stream.setTimeout(CANCEL_TIMEOUT_MS, () => stream.destroy())
  if (client.host.startsWith('/')) connection.connect(`${client.host}/.s.PGSQL.${client.port}`)
  else connection.connect(client.port, client.host)
  stream.unref()
}
