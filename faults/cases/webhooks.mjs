import { once } from 'node:events'
import { createServer } from 'node:http'
import { openDatabase } from '../../dist/index.js'
import { createWebhooks, endpoints, LOOPBACK } from '../../dist/webhooks/index.js'

const SECRET_KEY = Buffer.alloc(32, 7).toString('base64')
const EVENTS = { short: 60, whole: 200 }

/** What a hostile receiver does instead of answering. The endpoint has a timeout of half a second. */
const HOSTILITIES = {
  neverAnswers: () => {},
  fails: ({ response }) => response.writeHead(500).end('no'),
  redirects: ({ response }) => response.writeHead(307, { location: 'http://127.0.0.1:1/' }).end(),
  resets: ({ socket }) => socket.resetAndDestroy(),
  resetsInTheHead: ({ socket }) => socket.write('HTTP/1.1 200 O', () => socket.resetAndDestroy()),
  closes: ({ socket }) => socket.end(),
  speaksAnotherProtocol: ({ socket }) => socket.end('SSH-2.0-OpenSSH_9.6\r\n'),
  answersByteByByte({ socket }) {
    const timer = setInterval(() => (socket.destroyed ? clearInterval(timer) : socket.write('H')), 200)
    socket.on('close', () => clearInterval(timer))
  },
  endlessHead({ socket }) {
    socket.write('HTTP/1.1 200 OK\r\n')
    const more = () => {
      while (!socket.destroyed && socket.write(`x-more: ${'y'.repeat(1_000)}\r\n`));
    }
    socket.on('drain', more)
    more()
  },
}

export default {
  name: 'webhooks',
  title: 'a receiver of webhooks is hostile in nine ways, and dispatchers are killed',
  produces: false,
  workers: 2,
  worker: {
    script: 'dispatcher.mjs',
    secretKey: SECRET_KEY,
    schedule: Array.from({ length: 60 }, () => 100),
    circuitBreaker: { failureThreshold: 5, openMs: 200, maxOpenMs: 500 },
  },
  async run(context) {
    const { history, random } = context
    let isHostile = true
    const receive = (endpoint) => async (request, response) => {
      for await (const _ of request);
      const eventId = request.headers['webhook-id']
      if (endpoint === 'hostile' && isHostile && random.chance(0.9)) {
        const [name, act] = random.pick(Object.entries(HOSTILITIES))
        context.fire(name)
        act({ response, socket: request.socket })
        return
      }
      history.write({ type: 'received', endpoint, eventId })
      response.writeHead(204).end()
    }
    const hostilities = context.watch('fired', ({ what }) => what in HOSTILITIES)
    const servers = []
    const db = openDatabase({ url: context.url })
    try {
      const network = { allow: LOOPBACK }
      const ids = new Map()
      for (const name of ['good', 'hostile']) {
        const handle = receive(name)
        const server = createServer((request, response) => void handle(request, response).catch(() => {}))
        server.on('connection', (socket) => socket.on('error', () => {}))
        server.listen(0, '127.0.0.1')
        await once(server, 'listening')
        servers.push(server)
        const url = `http://127.0.0.1:${server.address().port}/${name}`
        const created = await endpoints(db, { secretKey: SECRET_KEY, network }).create(
          { url, timeoutMs: 500 },
          { principal: 'faults' },
        )
        ids.set(created.endpoint.id, name)
      }
      const { send } = createWebhooks()
      for (let left = context.short ? EVENTS.short : EVENTS.whole; left > 0; left -= 1) {
        await db.transaction(async (tx) => send(tx, { type: 'fault.event', payload: { left } }))
        if (left % 40 !== 0) continue
        const worker = context.anyWorker()
        await worker.kill('SIGKILL')
        context.fire('SIGKILL', { worker: worker.id })
        await context.startWorker()
      }
      await hostilities.seen(context.short ? 20 : 60)
      isHostile = false
      await context.calm()
      await context.drain()
      const { rows } = await db.query({
        text: `select id::text as id, event_id::text as "eventId", endpoint_id::text as endpoint, delivery_status as status
          from leasehold.webhook_outbox order by id`,
      })
      for (const row of rows) history.write({ type: 'delivery', ...row, endpoint: ids.get(row.endpoint) })
    } finally {
      await db.close()
      for (const server of servers) {
        server.closeAllConnections()
        server.close()
      }
    }
  },
}
