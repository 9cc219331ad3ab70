import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { access, constants } from 'node:fs/promises'
import { connect, createServer } from 'node:net'
import { delimiter, join } from 'node:path'
import { createInterface } from 'node:readline'
import { createClient } from 'redis'

const SHARE = 0.1
/** The reply to XADD: the id of the entry. */
const ADDED = /\d{13}-\d+/

async function redisServer() {
  for (const directory of [...(process.env.PATH ?? '').split(delimiter), '/usr/sbin']) {
    const path = join(directory, 'redis-server')
    if (
      await access(path, constants.X_OK).then(
        () => true,
        () => false,
      )
    )
      return path
  }
  return undefined
}

export default {
  name: 'broker-ack',
  title: 'a broker (Redis) takes an event, and the connection is cut before its acknowledgement arrives',
  skip: async () => ((await redisServer()) === undefined ? 'redis-server is not installed' : undefined),
  async prepare(context) {
    const port = 15_000 + Math.floor(Math.random() * 15_000)
    const args = [
      '--port',
      port,
      '--bind',
      '127.0.0.1',
      '--dir',
      context.directory.path,
      '--save',
      '',
      '--appendonly',
      'no',
    ]
    const redis = spawn(await redisServer(), args.map(String), {
      stdio: ['ignore', 'pipe', 'ignore'],
      detached: true,
    })
    context.onEnd(() => redis.kill('SIGKILL'))
    context.directory.watch(redis)
    await new Promise((resolve, reject) => {
      redis.once('exit', () => reject(new Error('redis-server did not start')))
      createInterface({ input: redis.stdout }).on('line', (line) => {
        if (line.includes('Ready to accept connections')) resolve()
      })
    })
    const state = { drops: false }
    const proxy = createServer((client) => {
      const upstream = connect(port, '127.0.0.1')
      client.on('data', (chunk) => upstream.write(chunk))
      upstream.on('data', (chunk) => {
        if (state.drops && ADDED.test(chunk.toString('latin1')) && context.random.chance(SHARE)) {
          context.fire('acknowledgement of the broker dropped')
          client.resetAndDestroy()
          upstream.destroy()
          return
        }
        if (!client.destroyed) client.write(chunk)
      })
      for (const [from, to] of [
        [client, upstream],
        [upstream, client],
      ]) {
        from.on('error', () => from.destroy())
        from.on('close', () => to.destroy())
      }
    })
    proxy.listen(0, '127.0.0.1')
    await once(proxy, 'listening')
    context.onEnd(() => proxy.close())
    context.broker = { state, port }
    context.workerOptions = { redisUrl: `redis://127.0.0.1:${proxy.address().port}` }
  },
  times: 6,
  async step({ broker, delay }) {
    broker.state.drops = true
    await delay(1_500)
    broker.state.drops = false
    await delay(300)
  },
  async finish({ broker, lines }) {
    const client = createClient({ url: `redis://127.0.0.1:${broker.port}` })
    await client.connect()
    const entries = await client.xRange('events', '-', '+')
    client.destroy()
    const has = new Map()
    for (const { message } of entries) {
      const id = message.ce_id ?? message.id ?? JSON.parse(message.payload).id
      has.set(id, (has.get(id) ?? 0) + 1)
    }
    const written = new Set(lines('written').map(({ eventId }) => eventId))
    const objections = []
    for (const { eventId, row } of lines('accepted'))
      if (!has.has(eventId)) objections.push({ rule: 'lost', text: `the broker does not have row ${row}` })
    for (const id of has.keys())
      if (!written.has(id))
        objections.push({ rule: 'event id', text: `the broker has ${id}, which nobody wrote` })
    return { objections, figures: { duplicates: entries.length - has.size } }
  },
}
