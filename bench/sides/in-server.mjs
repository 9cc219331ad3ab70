// The ceiling: Leasehold's own statements, from docs/sql/outbox of the build, in a loop inside the server. Without client,
// network or handler, one session cannot be faster than this.
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { withClient } from '../client.mjs'
import { leasehold } from './leasehold.mjs'

const STATEMENT = {
  none: 'settle-and-claim-in-order',
  many: 'settle-and-claim-by-key',
  hot: 'settle-and-claim-by-key',
}

/** As a relay with default settings; a walk sees at most this many keys. */
const LEASE_MS = 120_000
const MAX_KEYS_PER_WALK = 1_000

/** The parameters that a statement may have: type and value at the start. */
const VARIABLES = ({ limit }) => ({
  limit: ['int', String(limit)],
  bytes: ['float8', '16777216'],
  bucket: ['smallint', '0'],
  owner: ['text', `'in-server'`],
  leaseMs: ['float8', String(LEASE_MS)],
  suspects: ['int', '1'],
  steps: ['int', String(MAX_KEYS_PER_WALK)],
  excluded1: ['bigint[]', `'{}'`],
  id1: ['bigint[]', `'{}'`],
  tokens: ['bigint[]', `'{}'`],
  cursor1: ['timestamptz', `'-infinity'`],
  cursor2: ['bigint', '0'],
  keyCursor: ['text', `''`],
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
  from_first_key boolean;
  answer record;
begin
  loop
    claimed_ids := '{}';
    claimed_tokens := '{}';
    from_first_key := v_keycursor = '';
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
    if json_typeof(facts -> 'cursor') = 'array' then
      v_cursor1 := facts -> 'cursor' ->> 0;
      v_cursor2 := facts -> 'cursor' ->> 1;
    else
      -- No text sorts between a text and the same with the smallest character after it.
      v_keycursor := coalesce((facts ->> 'cursor') || E'\\x01', '');
    end if;
    exit when claimed_ids = '{}' and from_first_key;
  end loop;
end
$procedure$`
}
