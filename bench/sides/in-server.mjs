// The ceiling: Leasehold's own statements, from docs/sql/outbox of the build, in a loop inside the server. Without client,
// network or handler, one session cannot be faster than this.
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { withClient } from '../client.mjs'
import { leasehold } from './leasehold.mjs'

const STATEMENT = {
  none: 'settle-and-claim-in-order',
  many: 'settle-and-claim-by-key',
}

const LEASE_MS = 120_000
/** As a relay with default settings: how many due rows with a key a claim reads at most. */
const MAX_ROWS_READ = 1_000

/** The parameters that a statement may have: type and value at the start. */
const VARIABLES = ({ limit }) => ({
  limit: ['int', String(limit)],
  bytes: ['float8', '16777216'],
  bucket: ['smallint', '0'],
  owner: ['text', `'in-server'`],
  leaseMs: ['float8', String(LEASE_MS)],
  suspects: ['int', '1'],
  steps: ['int', String(MAX_ROWS_READ)],
  rows: ['int', '0'],
  oldestFirst: ['boolean', 'false'],
  overlapMs: ['float8', '0'],
  freed1: ['bigint[]', `'{}'`],
  excluded1: ['bigint[]', `'{}'`],
  id1: ['bigint[]', `'{}'`],
  tokens: ['bigint[]', `'{}'`],
  cursor1: ['timestamptz', `'-infinity'`],
  cursor2: ['bigint', '0'],
})

/** `build`: the root of a checkout; `limit`: rows of one statement. */
export function inServer({ build, limit, keys }) {
  return {
    ...leasehold({ build, maxBatch: 1 }),

    async start({ url, events, handled }) {
      const file = join(build, 'docs/sql/outbox', `${STATEMENT[keys]}.sql`)
      const loop = procedure(await readFile(file, 'utf8'), { limit })
      await withClient(url, async (client) => {
        await client.query(loop)
        await client.query('call bench.settle_and_claim()')
      })
      for (let i = 0; i < events; i += 1) handled()
      return { stop: async () => {} }
    },
  }
}

/** The first line of a statement names its parameters: `-- $1 limit, $2 bytes, …`. They become variables. */
function procedure(text, { limit }) {
  const variables = VARIABLES({ limit })
  const [firstLine] = text.split('\n')
  const names = new Map([...firstLine.matchAll(/\$(\d+) (\w+)/g)].map(([, number, name]) => [number, name]))
  const unknown = [...names.values()].find((name) => variables[name] === undefined)
  if (unknown !== undefined)
    throw new Error(`the statement has a parameter that the loop does not know: ${unknown}`)
  const variable = (name) => `v_${name.toLowerCase()}`
  const statement = text
    .slice(firstLine.length)
    .trim()
    .replaceAll(/\$(\d+)/g, (_, number) => variable(names.get(number)))
  const declared = Object.entries(variables).map(
    ([name, [type, value]]) => `${variable(name)} ${type} := ${value};`,
  )
  return `create procedure bench.settle_and_claim() language plpgsql as $procedure$
#variable_conflict use_column
declare
  ${declared.join('\n  ')}
  facts json;
  claimed_ids bigint[];
  claimed_tokens bigint[];
  from_start boolean;
  answer record;
begin
  loop
    claimed_ids := '{}';
    claimed_tokens := '{}';
    from_start := v_cursor1 = '-infinity';
    for answer in ${statement} loop
      if answer.json_build_object is not null then
        facts := answer.json_build_object;
      else
        claimed_ids := claimed_ids || answer.id;
        claimed_tokens := claimed_tokens || answer.lock_token;
      end if;
    end loop;
    commit;
    v_id1 := claimed_ids;
    v_tokens := claimed_tokens;
    v_freed1 := array(select json_array_elements_text(
      case when json_typeof(facts -> 'freed') = 'array' then facts -> 'freed' else '[]' end)::bigint);
    exit when claimed_ids = '{}' and from_start;
    if claimed_ids <> '{}' and json_typeof(facts -> 'cursor') = 'array' then
      v_cursor1 := facts -> 'cursor' ->> 0;
      v_cursor2 := facts -> 'cursor' ->> 1;
    else
      v_cursor1 := '-infinity';
      v_cursor2 := 0;
    end if;
  end loop;
end
$procedure$`
}
