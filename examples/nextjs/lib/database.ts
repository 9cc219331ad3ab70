import { type Database, openDatabase } from 'leasehold'

let opened: Database | undefined

/** Opened with the first request: `next build` imports the routes as well, and has no database. */
export function database(): Database {
  opened ??= openDatabase({ url: process.env.DATABASE_URL ?? '' })
  return opened
}
