import type { Database } from './database.ts'
import { quoteLiteral } from './identifiers.ts'
import { SCHEMA_QUERIES, type SchemaQuery } from './schema-queries.ts'

/** What `schema.sql` starts with. */
export const SCHEMA_FILE_HEADER = `-- The schema after all migrations, as PostgreSQL sees it. Written by \`npm run schema\`; a test compares it.

`

/** The name every dump shows, so that dumps of differently named schemas can be compared. */
const SHOWN_AS = 'leasehold'

/**
 * The schema as text, from the catalogs: the same for the same objects, whatever the schema is called and in
 * whatever order they were made. It reads as SQL, and is meant for eyes and for comparing.
 */
export async function describeSchema(db: Pick<Database, 'transaction'>, schema: string): Promise<string> {
  return db.transaction(async (tx) => {
    await tx.query({ text: 'set transaction isolation level repeatable read, read only' })
    // With no schema on the path, PostgreSQL qualifies every name it prints.
    await tx.query({ text: `set local search_path to ''` })
    const sections: string[] = []
    for (const { text } of Object.values<SchemaQuery>(SCHEMA_QUERIES)) {
      const { rows } = await tx.query<{ definition: string }>({ text, values: [schema] })
      const definitions = rows.map(({ definition }) => normalise(definition, schema))
      sections.push(...definitions.sort(byCodeUnit))
    }
    return `${sections.join('\n\n')}\n`
  })
}

function normalise(definition: string, schema: string): string {
  const lines = definition.split('\n').map((line) => line.trimEnd())
  return names(schema)
    .reduce((text, [from, to]) => text.replaceAll(from, to), lines.join('\n'))
    .trim()
}

/** The forms in which the schema's name is printed: before a dot, in a grant, and in a function's own search_path. */
function names(schema: string): readonly (readonly [string | RegExp, string])[] {
  const bare = escapePattern(schema)
  const quoted = `"${schema.replaceAll('"', '""')}"`
  return [
    [`${quoted}.`, `${SHOWN_AS}.`],
    [new RegExp(String.raw`(?<![\w$"])${bare}\.`, 'g'), `${SHOWN_AS}.`],
    [` on schema ${quoted} to `, ` on schema ${SHOWN_AS} to `],
    [`SET search_path TO ${quoteLiteral(schema)}`, `SET search_path TO '${SHOWN_AS}'`],
    [`SET search_path TO ${quoteLiteral(quoted)}`, `SET search_path TO '${SHOWN_AS}'`],
  ]
}

function escapePattern(text: string): string {
  return text.replaceAll(/[.*+?^${}()|[\]\\]/g, String.raw`\$&`)
}

function byCodeUnit(a: string, b: string): number {
  if (a === b) return 0
  return a < b ? -1 : 1
}
