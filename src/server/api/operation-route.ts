/** An operation as a route. The rest of the server knows routes only: who may, limits, idempotency, OpenAPI. */
import { z } from 'zod'
import { type Operation, pathFields } from '../../operations/operation.ts'
import { type Route, route } from './route.ts'

const METHODS = { list: 'GET', show: 'GET', create: 'POST', remove: 'DELETE', do: 'POST' } as const

export function operationRoute(operation: Operation): Route {
  const { kind, path, summary, resource, role, forTenants = false, databaseRole, secrets = [] } = operation
  const method = METHODS[kind]
  const inPath = pathFields(operation)
  const params = partOf(operation, (name) => inPath.includes(name))
  const rest = partOf(operation, (name) => !inPath.includes(name))
  return route({
    method,
    path,
    summary,
    tag: resource.tag,
    role,
    forTenants,
    ...(databaseRole === undefined ? {} : { databaseRole }),
    ...(params === undefined ? {} : { params }),
    ...(rest === undefined ? {} : method === 'POST' ? { body: rest } : { query: rest }),
    status: kind === 'create' ? 201 : 200,
    answer: operation.output,
    secrets,
    run: async ({ params: named, query, body, db, schema, caller: { principal } }) =>
      operation.run({ db, schema, principal }, { ...named, ...query, ...Object(body) }),
  })
}

/** The fields of the input of which this is true; undefined: there are none. */
function partOf({ input }: Operation, isPart: (name: string) => boolean): z.ZodObject | undefined {
  const fields = Object.entries(input.shape).filter(([name]) => isPart(name))
  return fields.length === 0 ? undefined : z.strictObject(Object.fromEntries(fields))
}
