import { once } from 'node:events'
import { randomBytes, timingSafeEqual } from 'node:crypto'
import express from 'express'
import { migrate, openDatabase } from 'leasehold'
import { enqueue } from 'leasehold/outbox'
import { createDashboard, toNodeHandler } from 'leasehold/server'

// From the start, so that a signal stops it in order at any time.
const stopped = Promise.race([once(process, 'SIGTERM'), once(process, 'SIGINT')])

const { DATABASE_URL, PORT = '3000', ADMIN_PASSWORD = randomBytes(12).toString('base64url') } = process.env
const BASE_PATH = '/admin/leasehold'
const db = openDatabase({ url: DATABASE_URL })
await migrate(db)
await enqueue(db, { type: 'order.placed', payload: { order: 1 } }) // something to look at

const dashboard = createDashboard({
  db,
  basePath: BASE_PATH,
  instance: { name: 'example', color: '#0a7d4f' },
  // Called with every request of the API. Return undefined to refuse it.
  authorize: (_request, { incoming }) => ({ principal: incoming.user, role: 'operate', tenant: null }),
})
await dashboard.resumeChanges()

// Stands for the login that your application has.
const sessions = new Map()
const app = express()
app.get('/', (_request, response) => response.send(`The application. <a href="${BASE_PATH}">Dashboard</a>`))
app.get('/login', (_request, response) => {
  response.send('<form method="post"><input type="password" name="password"> <button>Log in</button></form>')
})
app.post('/login', express.urlencoded(), (request, response) => {
  const given = Buffer.from(String(request.body.password))
  const expected = Buffer.from(ADMIN_PASSWORD)
  if (given.length !== expected.length || !timingSafeEqual(given, expected)) {
    response.status(401).send('wrong password')
    return
  }
  const token = randomBytes(32).toString('base64url')
  sessions.set(token, 'admin')
  response.cookie('session', token, { httpOnly: true, sameSite: 'strict' }).redirect(303, BASE_PATH)
})

function requireLogin(request, response, next) {
  const token = /\bsession=([\w-]+)/.exec(request.headers.cookie ?? '')?.[1]
  request.user = sessions.get(token)
  if (request.user === undefined) response.redirect(303, '/login')
  else next()
}
app.use(BASE_PATH, requireLogin, toNodeHandler(dashboard))

const server = app.listen(Number(PORT), '127.0.0.1')
await once(server, 'listening')
console.log(`listening on http://127.0.0.1:${server.address().port}, password ${ADMIN_PASSWORD}`)

// Live updates are requests without an end: `stop` ends them, and the server can close.
await stopped
const closed = once(server, 'close')
server.close()
await dashboard.stop()
await closed
await db.close()
