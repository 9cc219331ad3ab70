// Takes webhooks on loopback, in a process of its own, and answers after a while: 204 and nothing else.
import { createServer } from 'node:http'

const delayMs = Number(process.argv[2])
process.once('disconnect', () => process.exit(0))

const server = createServer({ keepAliveTimeout: 60_000 }, (request, response) => {
  request.resume()
  request.once('end', () => {
    const answer = () => response.writeHead(204).end()
    if (delayMs === 0) answer()
    else setTimeout(answer, delayMs)
  })
})
server.listen(0, '127.0.0.1', () => process.send({ url: `http://127.0.0.1:${server.address().port}/hook` }))
