/** A number from the environment. What is no number is refused by name, before anything has started. */
export function numberOf(name, byDefault, { least = 0, most = Number.MAX_SAFE_INTEGER } = {}) {
  const given = process.env[name]
  if (given === undefined || given === '') return byDefault
  const value = Number(given)
  if (value >= least && value <= most) return value
  throw new Error(`${name} is ${JSON.stringify(given)}, but must be a number from ${least} to ${most}.`)
}

/** The database of the application, which is Leasehold's as well. */
export function databaseUrlOf() {
  const { DATABASE_URL } = process.env
  if (DATABASE_URL) return DATABASE_URL
  throw new Error('DATABASE_URL is not set.')
}
