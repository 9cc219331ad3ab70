import type { Duplex } from 'node:stream'
import pg, { type Client, Connection, type FieldDef, Result as PgResult, type Submittable } from 'pg'
import { messageOf } from '../errors.ts'
import { unreadable } from './client.ts'
import { endsConnection, isServerError } from './failures.ts'
import type { Result, Statement } from './queryable.ts'

/** What the types of `pg` leave out of its results, and pg-cursor uses as well. */
interface ReadResult extends Result<object> {
  readonly fields: readonly FieldDef[]
  readonly _parsers: readonly unknown[]
  readonly _prebuiltEmptyResultObject: object
  addFields(fields: readonly FieldDef[]): void
  parseRow(values: readonly (string | null)[]): object
  addCommandComplete(message: CommandComplete): void
}

interface CommandComplete {
  readonly text: string
}

/** What its types leave out of a connection. */
interface PreparingConnection {
  /** The text of each statement that was parsed on it, by its name. */
  readonly parsedStatements: Readonly<Record<string, string | undefined>>
}

// oxlint-disable-next-line typescript/no-unsafe-type-assertion -- @types/pg leaves utils out
const { prepareValue } = (pg as unknown as PgWithUtils).utils

interface PgWithUtils {
  readonly utils: { readonly prepareValue: (value: unknown) => Buffer | string | null }
}

/** Messages that are not sent yet. One write of all of them costs less than one of each, and none is sent by half. */
let messages: Buffer[] = []
const writer = new Connection({
  // oxlint-disable-next-line typescript/no-unsafe-type-assertion -- all that a connection needs to write messages
  stream: () => ({ writable: true, write: (message: Buffer) => messages.push(message) }) as unknown as Duplex,
})

/** What each prepared statement returns, by its name. The server refuses it if its columns have changed. */
type Columns = Pick<ReadResult, 'fields' | '_parsers' | '_prebuiltEmptyResultObject'>
type Described = Map<string, Columns>
const described = new WeakMap<Connection, Described>()

/** Where each error of a pipeline occurred. */
const failures = new WeakMap<object, number>()

/**
 * The index of the statement with which a pipeline failed. It is undefined where no single statement failed: the commit
 * did, or the connection was lost, or took too long.
 */
export function failedStatement(error: unknown): number | undefined {
  return typeof error === 'object' && error !== null ? failures.get(error) : undefined
}

/** Remembers where an error occurred. */
export function locate(error: unknown, at: number | undefined): void {
  if (at !== undefined && typeof error === 'object' && error !== null) failures.set(error, at)
}

/**
 * Several statements in one round trip: Parse and Describe (once on each connection), Bind and Execute of each, and one
 * Sync. PostgreSQL runs them as one transaction. It is a query of `pg` as pg-cursor is one: the client calls the methods
 * below with the messages of the server. Those that no server sends end the connection (`endOnUnreadable`).
 */
export class Pipeline implements Submittable {
  readonly answer: Promise<Result<object>[]>
  /** The client sets it where the URL has a `query_timeout`, and then waits for its call as long as that. */
  callback: (() => void) | undefined
  readonly #statements: readonly Statement[]
  readonly #results: ReadResult[]
  #resolve!: (results: Result<object>[]) => void
  #reject!: (error: unknown) => void
  /** Of the connection by which it was sent. */
  #described: Described | undefined
  /** How many statements are complete. */
  #completed = 0
  #failedAt: number | undefined
  /** What the parser of a value threw. The statements take effect nevertheless, as a single one does. */
  #unparsed: { readonly error: unknown; readonly at: number } | undefined

  constructor(client: Client, statements: readonly Statement[]) {
    this.#statements = statements
    this.#results = statements.map(
      // oxlint-disable-next-line typescript/no-unsafe-type-assertion -- @types/pg knows neither the row mode of objects nor that only one method of the types is called
      ({ rowMode }) => new PgResult(rowMode as string, client as never) as unknown as ReadResult,
    )
    this.answer = new Promise((resolve, reject) => {
      this.#resolve = (results) => {
        this.callback?.()
        resolve(results)
      }
      this.#reject = (error) => {
        this.callback?.()
        reject(error)
      }
    })
  }

  /**
   * The statement whose answer comes next, or the last one before the commit. The server may be further: it sends its
   * answers when it is ready, when they fill its buffer, and when a statement fails.
   */
  get current(): Statement {
    return this.#statements[this.#completed] ?? this.#statements.at(-1) ?? { text: '' }
  }

  /** All of it as one statement, for messages. */
  get whole(): Statement {
    return { text: this.#statements.map(({ name, text }) => name ?? text).join('; ') }
  }

  /** The client reads them at each ParseComplete, to remember the statement. So one that is not reached is parsed again. */
  get name(): string | undefined {
    return this.current.name
  }

  get text(): string {
    return this.current.text
  }

  /** Notes which statement failed with this error, for `failedStatement`. */
  locate(error: unknown): void {
    if (this.#failedAt !== this.#statements.length) locate(error, this.#failedAt)
  }

  submit(connection: Connection): Error | null {
    const known: Described = described.get(connection) ?? new Map()
    described.set(connection, known)
    this.#described = known
    // oxlint-disable-next-line typescript/no-unsafe-type-assertion -- @types/pg leaves parsedStatements out
    const { parsedStatements } = connection as unknown as PreparingConnection
    const parsing = new Map<string, string>()
    let at = 0
    try {
      for (const { name = '', text, values = [] } of this.#statements) {
        const previous = name === '' ? undefined : (parsedStatements[name] ?? parsing.get(name))
        if (previous === undefined) {
          writer.parse({ name, text, types: [] }, true)
          parsing.set(name, text)
        } else if (previous !== text)
          throw new Error(`The name ${name} belongs to another prepared statement.`)
        // oxlint-disable-next-line typescript/no-unsafe-type-assertion -- the mapper accepts any value
        writer.bind({ statement: name, values: values as string[], valueMapper: prepareValue }, true)
        const columns = previous === undefined ? undefined : known.get(name)
        if (columns === undefined) writer.describe({ type: 'P' }, true)
        else Object.assign(this.#results[at] ?? {}, columns)
        writer.execute({}, true)
        at += 1
      }
      writer.sync()
      if (connection.stream.writable) connection.stream.write(Buffer.concat(messages))
      return null
    } catch (error) {
      this.#failedAt = at
      return error instanceof Error ? error : new Error(messageOf(error))
    } finally {
      messages = []
    }
  }

  handleRowDescription({ fields }: { readonly fields: readonly FieldDef[] }): void {
    const result = this.#running()
    result.addFields(fields)
    const { name } = this.current
    if (name === undefined) return
    const { _parsers, _prebuiltEmptyResultObject } = result
    this.#described?.set(name, { fields, _parsers, _prebuiltEmptyResultObject })
  }

  handleDataRow({ fields }: { readonly fields: readonly (string | null)[] }): void {
    const result = this.#running()
    if (fields.length !== result.fields.length) this.#refuse('a row has other columns than were announced')
    if (this.#unparsed !== undefined) return
    try {
      result.rows.push(result.parseRow(fields))
    } catch (error) {
      this.#unparsed = { error, at: this.#completed }
    }
  }

  handleCommandComplete(message: CommandComplete): void {
    this.#running().addCommandComplete(message)
    this.#completed += 1
  }

  handleEmptyQuery(): void {
    this.#running()
    this.#completed += 1
  }

  handlePortalSuspended(): void {
    this.#refuse('a statement was suspended')
  }

  handleCopyInResponse(): void {
    this.#refuse('it waits for the rows of a COPY')
  }

  handleCopyData(): void {}

  /** Of the server, or the client's own where the connection ended or nothing was sent. */
  handleError(error: Error, connection: Connection): void {
    if (!isServerError(error) || endsConnection(error)) {
      this.#reject(error)
      return
    }
    this.#failedAt = this.#completed
    // The client has already forgotten this pipeline. The connection can be used again when the server is ready.
    const settle = (): void => {
      connection.off('readyForQuery', settle)
      connection.off('end', settle)
      this.#reject(error)
    }
    connection.on('readyForQuery', settle)
    connection.on('end', settle)
  }

  handleReadyForQuery(): void {
    if (this.#completed < this.#statements.length) this.#refuse('statements were not answered')
    this.#failedAt = this.#unparsed?.at
    if (this.#unparsed === undefined) this.#resolve(this.#results)
    else this.#reject(this.#unparsed.error)
  }

  #running(): ReadResult {
    return this.#results[this.#completed] ?? this.#refuse('it answers more statements than it was sent')
  }

  #refuse(what: string): never {
    const error = new Error(what)
    // The client may have forgotten this pipeline.
    this.#reject(unreadable(error))
    throw error
  }
}
