import { createHash } from 'node:crypto'

/** The same query of a definition has the same hash, whatever the order of its keys; of another one it has another. */
export function chunkHash(definition: string, query: unknown): string {
  return createHash('sha256')
    .update(`${definition}\0`)
    .update(canonical(JSON.parse(JSON.stringify(query))))
    .digest('hex')
}

function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  const fields = Object.entries(value).toSorted(([a], [b]) => (a < b ? -1 : 1))
  return `{${fields.map(([name, field]) => `${JSON.stringify(name)}:${canonical(field)}`).join(',')}}`
}
