/** What can be done to the ordering keys of the outbox that an event holds up. Commands and HTTP routes follow from it. */
import { z } from 'zod'
import { LeaseholdError } from '../errors.ts'
import { counted } from '../figures.ts'
import { digits, field, limitOf, moment, reason, text } from '../operations/fields.ts'
import { operation, resource } from '../operations/operation.ts'
import { keysHeldUp, MAX_WAITING } from './admin/held-up-keys.ts'
import { unblock } from './admin/unblock.ts'

const heldUpKey = z.object({
  orderingKey: field(z.string(), { title: 'Key' }),
  state: z.enum(['parked', 'blocked']),
  id: field(digits, { title: 'Event' }),
  type: z.string(),
  attempts: z.int(),
  lastError: z.string().nullable(),
  availableAt: field(moment.nullable(), { title: 'Next attempt' }),
  waiting: z
    .int()
    .describe(`How many events wait for it, counted up to ${MAX_WAITING.toLocaleString('en-US')}.`),
})

const RESOURCE = resource({
  rows: 'keys',
  tag: 'outbox',
  part: 'outbox',
  item: heldUpKey,
  columns: ['orderingKey', 'state', 'id', 'type', 'attempts', 'waiting', 'availableAt', 'lastError'],
  none: 'No ordering key is held up.',
})

export const HELD_UP_KEYS = [
  operation({
    kind: 'list',
    resource: RESOURCE,
    command: 'outbox keys',
    path: '/outbox/keys',
    summary: 'List the ordering keys that an event holds up',
    role: 'read',
    input: z.strictObject({ limit: limitOf(20) }),
    output: z.object({
      items: z.array(heldUpKey),
      more: z.boolean(),
      partial: z.boolean().describe('There are so many keys that not all were examined.'),
    }),
    async run({ db, schema }, { limit }) {
      const { keys, more, partial } = await keysHeldUp(db, { schema, limit })
      return { items: [...keys], more, partial }
    },
  }),
  operation({
    kind: 'do',
    resource: RESOURCE,
    command: 'outbox unblock',
    path: '/outbox/keys/unblock',
    // A key may be any text, also one that a path cannot carry.
    positional: ['orderingKey'],
    summary: 'Unblock an ordering key that a parked or failing event holds up',
    role: 'operate',
    input: z.strictObject({
      orderingKey: field(text, { placeholder: 'key' }),
      replay: z
        .boolean()
        .default(false)
        .describe('Publish that event first, instead of continuing without it.'),
      reason,
    }),
    output: z.object({
      orderingKey: z.string(),
      replay: z.boolean(),
      parked: z.int().describe('Dead events that had held the key up.'),
      failing: z.int().describe('Events at which attempts had failed.'),
    }),
    async run({ db, schema, principal }, { orderingKey, replay, reason: why }) {
      const unblocked = await unblock(db, { orderingKey, replay, reason: why, schema, principal })
      if (unblocked.parked + unblocked.failing > 0) return { orderingKey, replay, ...unblocked }
      throw new LeaseholdError(
        'STATE_CONFLICT',
        `Nothing holds up the key ${JSON.stringify(orderingKey)}, so that nothing was changed.`,
        { field: 'orderingKey', remedy: '`leasehold outbox keys` lists those that are held up.' },
      )
    },
    done({ orderingKey, replay, parked }) {
      const events = parked > 0 ? counted(parked, 'parked event') : 'failing event'
      const fate = parked > 1 ? 'They stay dead' : parked === 1 ? 'It stays dead' : 'It is dead now'
      return replay
        ? `The key ${orderingKey} continues, with its ${events} first.`
        : `The key ${orderingKey} continues without its ${events}. ${fate}; \`leasehold outbox replay\` brings back dead events.`
    },
  }),
]
