// Why a goal was missed, or what a stated figure means: by the id of the goal, written by hand after
// profiling. It is Markdown of one paragraph: what the profile shows, and what was tried. It is shown where it applies, so
// that it outlasts a run in which the goal is met. The report says which missed goals have none.

export const EXPLANATIONS = {
  enqueue:
    'The INSERT also checks the fields and limits of the event, gives it its id, wakes relays that wait, and writes two or ' +
    'three index entries in the place of one ([decision 007](decisions/007-outbox-table.md), ' +
    '[014](decisions/014-wake-ups.md)).',

  'held-hot':
    'While a snapshot is held, the index entries of finished events of the key cannot be removed, and the search for the head ' +
    'of the key walks past all of them. To start after the last settled event would make it flat, and is wrong: a late commit ' +
    'or a replay would be passed over (8 order violations in 19,000 events, [decision 003](decisions/003-claim-cursor.md)). ' +
    'With 10,000 keys each key has few entries.',

  wal:
    'Every UPDATE copies the row, payload included, and Leasehold makes two of them and retains the last version; ' +
    'graphile-worker makes one and deletes the row. With keys graphile-worker also updates its queue twice for each job. ' +
    'Tried: payloads outside of the row; PostgreSQL does that only for rows of more than 2 KB, whatever `toast_tuple_target` says.',

  webhooks:
    'The bare loop does no more than sign and send. With two cores for the sender, the receiver and the server, what is ' +
    'missing is the processor time of claim, lease, attempt record and settlement.',
}
