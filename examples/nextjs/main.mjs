// Two processes, as in production: Next.js and the worker. A platform would start and stop each of them by itself.
import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'

const { PORT = '3000', ADMIN_PASSWORD = randomBytes(12).toString('base64url') } = process.env
const env = { ...process.env, ADMIN_PASSWORD, SESSION_SECRET: randomBytes(32).toString('base64url') }
const start = (...args) => spawn(process.execPath, args, { env, stdio: 'inherit' })

console.log(`password of the dashboard: ${ADMIN_PASSWORD}`)
const next = start('node_modules/next/dist/bin/next', 'start', '--hostname', '127.0.0.1', '--port', PORT)
const worker = start('worker.mjs')
const ended = [next, worker].map(async (child) => once(child, 'exit'))

const signalled = ['SIGTERM', 'SIGINT'].map(async (signal) => once(process, signal).then(() => 'signal'))
const isStopped = (await Promise.race([...signalled, ...ended])) === 'signal'
next.kill()
worker.kill()
const [, [workerCode]] = await Promise.all(ended)
// Next.js ends with 143 after SIGTERM, and a worker that has stopped cleanly with 0.
process.exitCode = isStopped ? workerCode : 1
