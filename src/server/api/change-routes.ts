/** The routes of bulk changes, which every application has: count what matches, and change it in the background. */
import { z } from 'zod'
import { runBulkChange, requestBulkChange } from '../../operations/bulk-change.ts'
import { showChange } from '../../operations/changes.ts'
import { type AnyBulkChange, bulkChange } from './bulk-changes.ts'
import { type Route, route } from './route.ts'
import { change } from '../../operations/changes.ts'
import { reason } from '../../operations/fields.ts'
import { pacing, preview } from './schemas.ts'

export interface ChangeRoutes<Filter extends z.ZodType<object>> {
  /** The list that the rows are in: `/outbox/events`. */
  readonly path: string
  readonly rows: string
  readonly tag: string
  readonly forTenants: boolean
  /** The actions in the audit, by the names that clients use. */
  readonly actions: Readonly<Record<string, string>>
  readonly filter: Filter
}

export function changeRoutes<Filter extends z.ZodType<object>>(declared: ChangeRoutes<Filter>): Route[] {
  const { path, rows, tag, forTenants, actions, filter } = declared
  const names = Object.keys(actions)
  const choice = {
    action: z.enum(names),
    filter: filter.optional().describe(`Which ${rows}: all that satisfy every condition.`),
    ...pacing,
  }
  const shared = { tag, role: 'operate', forTenants } as const
  return [
    route({
      ...shared,
      method: 'POST',
      path: `${path}/changes/preview`,
      summary: `Count the ${rows} that a change would concern, and change nothing`,
      body: z.strictObject(choice),
      answer: preview,
      async run({ db, schema, body: { action, ...chosen } }) {
        const options = { ...chosen, schema, dryRun: true }
        const { matched, counts, skipped } = await runBulkChange(db, declarationOf(actions, action), options)
        return { matched, counts, skipped }
      },
    }),
    route({
      ...shared,
      method: 'POST',
      path: `${path}/changes`,
      summary: `Change ${rows} in the background: a selection, or all that match`,
      status: 202,
      body: z.strictObject({ ...choice, reason }).meta({
        examples: [{ action: names[0], ids: ['4711'], reason: 'the broker was down' }],
      }),
      answer: change,
      async run({
        db,
        schema,
        body: { action, ...chosen },
        caller: { principal, tenant, keyId },
        context,
        afterwards,
      }) {
        const declaration = declarationOf(actions, action)
        const asked = { ...chosen, schema, principal }
        const changeId = await requestBulkChange(db, declaration, asked, { tenant, keyId })
        afterwards(() => context.changes.start({ changeId, action: declaration.action, principal, tenant }))
        return showChange(db, changeId, schema)
      },
    }),
  ]
}

function declarationOf(actions: Readonly<Record<string, string>>, name: string): AnyBulkChange {
  const declaration = bulkChange(actions[name] ?? '')
  if (declaration === undefined) throw new Error(`There is no bulk change ${name}.`)
  return declaration
}
