/**
 * HTTP, on loopback only. `/livez` says that the process answers, `/readyz` whether it can do its work, `/metrics`
 * what it has done, `/` what this is. A request whose Host header is not this server's own is refused, whatever it asks for.
 */
export { isLoopbackHost } from '../config/loopback.ts'
export { startServer, type HttpServer, type ServerOptions } from './start.ts'
