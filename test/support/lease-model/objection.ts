/** What a failure of the checker starts with, so that it cannot be mistaken for an error of PostgreSQL. */
export const OBJECTION = 'The model objects: '

export function objection(why: string): Error {
  return new Error(`${OBJECTION}${why}`)
}
