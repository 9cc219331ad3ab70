// A TCP proxy between one worker process and PostgreSQL. It knows the framing of the protocol, so that it can cut a
// connection at the boundary of a message: after a statement was executed, and before its answer has arrived.
import { once } from 'node:events'
import { connect, createServer } from 'node:net'

export async function startProxy(target) {
  const { hostname, port } = new URL(target)
  const connections = new Set()
  let mode = { kind: 'forward' }
  let dropping

  function accept(client) {
    const upstream = connect({ host: hostname, port: Number(port), noDelay: true })
    client.setNoDelay(true)
    const connection = {
      client,
      upstream,
      listens: false,
      statement: '',
      statements: new Map(),
      /** Bytes that are held back, in the order in which they are to be forwarded. */
      held: [],
      isHalfOpen: false,
    }
    connections.add(connection)
    const requests = frames({ startsUntyped: true })
    const answers = frames({ startsUntyped: false })
    client.on('data', (chunk) => {
      for (const message of requests(chunk)) {
        noteStatement(connection, message)
        forward(connection, upstream, message)
      }
    })
    upstream.on('data', (chunk) => {
      for (const message of answers(chunk)) {
        if (client.destroyed) return
        if (isDropped(connection, message)) {
          client.resetAndDestroy()
          upstream.destroy()
          return
        }
        forward(connection, client, message)
      }
    })
    const close = () => {
      // Of a connection that is half open, neither side hears that the other has gone.
      if (connection.isHalfOpen) return
      connections.delete(connection)
      client.destroy()
      upstream.destroy()
    }
    for (const socket of [client, upstream]) {
      socket.on('error', () => socket.destroy())
      socket.on('close', close)
    }
    client.on('end', () => {
      if (!connection.isHalfOpen) upstream.end()
    })
    if (mode.kind === 'halfOpen' && mode.which === undefined) connection.isHalfOpen = true
  }

  function forward(connection, to, message) {
    if (connection.isHalfOpen) return
    if (mode.kind === 'hold') connection.held.push({ to, message, statement: connection.statement })
    else if (mode.kind === 'delay') setTimeout(() => send(connection, to, message), mode.ms)
    else send(connection, to, message)
  }

  function send(connection, to, message) {
    if (!connection.isHalfOpen && !to.destroyed) to.write(message)
  }

  function isDropped(connection, message) {
    if (dropping === undefined || message[0] !== COMMAND_COMPLETE) return false
    if (!dropping.statement.test(connection.statement) || !dropping.when()) return false
    dropping.onDrop(connection.statement)
    return true
  }

  // Half-open, so that the operating system does not answer the end of a stream that is being swallowed.
  const server = createServer({ allowHalfOpen: true }, accept)
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const url = new URL(target)
  url.hostname = '127.0.0.1'
  url.port = String(server.address().port)

  return {
    url: url.href,
    /** Resets every connection. */
    cut() {
      const cut = connections.size
      for (const { client, upstream } of connections) {
        client.resetAndDestroy()
        upstream.resetAndDestroy()
      }
      return cut
    },
    /** Forwards everything later by this much. */
    delay: (ms) => void (mode = ms === 0 ? { kind: 'forward' } : { kind: 'delay', ms }),
    /** Holds back everything, in both directions, until `flush`. */
    hold: () => void (mode = { kind: 'hold' }),
    /** Forwards what was held back. Returns the statements that the server gets to see only now. */
    flush() {
      mode = { kind: 'forward' }
      const late = []
      for (const connection of connections) {
        for (const { to, message, statement } of connection.held.splice(0)) {
          if (to === connection.upstream && message[0] === EXECUTE) late.push(statement)
          send(connection, to, message)
        }
      }
      return late
    },
    /**
     * The connections that exist (`listen`: those that listen, `query`: the others) stay open, and nothing passes any more.
     * Returns how many these are. New connections work.
     */
    halfOpen(which) {
      const chosen = [...connections].filter(
        (connection) => !connection.isHalfOpen && connection.listens === (which === 'listen'),
      )
      for (const connection of chosen) connection.isHalfOpen = true
      return chosen.length
    },
    /** Cuts a connection when such a statement was executed, before the worker hears of it. `undefined` ends this. */
    dropAnswers: (rule) => void (dropping = rule),
    async close() {
      server.close()
      for (const { client, upstream } of connections) {
        client.destroy()
        upstream.destroy()
      }
      await Promise.resolve()
    },
  }
}

const COMMAND_COMPLETE = 'C'.charCodeAt(0)
const PARSE = 'P'.charCodeAt(0)
const BIND = 'B'.charCodeAt(0)
const EXECUTE = 'E'.charCodeAt(0)
const QUERY = 'Q'.charCodeAt(0)

/** Splits a stream into messages: a type, a length, a body. The first message of a client has no type. */
function frames({ startsUntyped }) {
  let rest = Buffer.alloc(0)
  let isUntyped = startsUntyped
  return (chunk) => {
    rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk])
    const messages = []
    for (;;) {
      const head = isUntyped ? 0 : 1
      if (rest.length < head + 4) return messages
      const length = head + rest.readUInt32BE(head)
      if (rest.length < length) return messages
      messages.push(rest.subarray(0, length))
      rest = rest.subarray(length)
      isUntyped = false
    }
  }
}

/** Remembers what the connection is executing. Prepared statements are named when they are parsed, and bound by name. */
function noteStatement(connection, message) {
  const texts = (count) => message.subarray(5).toString('latin1').split('\0', count)
  if (message[0] === QUERY) [connection.statement] = texts(1)
  else if (message[0] === PARSE) {
    const [name, text] = texts(2)
    connection.statements.set(name, text)
    connection.statement = text
  } else if (message[0] === BIND) {
    const [, name] = texts(2)
    connection.statement = connection.statements.get(name) ?? ''
  }
  if (/^\s*listen\b/i.test(connection.statement)) connection.listens = true
}
