import { createServer } from 'node:http'
import { buffer } from 'node:stream/consumers'
import { verify } from 'leasehold/webhooks'

async function receive(request, response) {
  try {
    const body = await buffer(request)
    const { id, payload } = await verify({ headers: request.headers, body }, process.env.SECRET)
    process.stdout.write(`${id} ${JSON.stringify(payload)}\n`)
    response.writeHead(204).end()
  } catch (error) {
    process.stdout.write(`${String(error)}\n`)
    response.writeHead(400).end()
  }
}

const server = createServer((request, response) => void receive(request, response))
server.listen(process.env.PORT ?? 3000, '127.0.0.1', () => process.stdout.write('listening\n'))
