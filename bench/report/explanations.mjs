// Why a row of "What we lose at" is missed, written by hand after profiling: what the profile shows and what was tried. An
// entry belongs to a check of a scenario by its exact text. The report says so where an explanation is missing, and refuses
// an entry for a check that does not exist.

const BATCHES =
  'PgQue settles whole batches: an event costs it an INSERT and a position that moves, and no UPDATE at all. In return one ' +
  'event that fails holds up its batch or is copied to a retry queue, there is no lease on an event, and its order is that of ' +
  'the queue. Leasehold, graphile-worker and pg-boss settle each event by itself.'

const DRAIN =
  'graphile-worker updates a job once, when it is claimed, and deletes it. Leasehold updates an event twice and retains it: ' +
  '36 to 41 µs of server time for each event in our profiles, against 24 to 32 µs. The loop in the server (“in-server”), which ' +
  'has no client at all, is the upper limit of our two statements. Tried: fewer index entries (uuids that we generate ' +
  'are not indexed; events in flight left the index of keys), constraints as one function, larger batches and prefetch; ' +
  '[decision 009](decisions/009-cost-of-an-event.md) has what each brought. What remains is the second ' +
  'update, which is the price of the history.'

const KEYS =
  'In our profiles an event with a key costs the server 56 to 84 µs: the two updates, and one look-up in the index of keys ' +
  'for the head of each key, for the claim and for the next event of a settled key. graphile-worker locks one row for each queue, ' +
  'which serialises a hot queue (see “one hot key”), but costs little where 10,000 queues have ten jobs each. Tried: walking ' +
  'from key to key (the sketch), then finding keys by arrival, which reads only what is new; claiming the next event of ' +
  'a key in the statement that settles the one before; searching for no more heads than there is room for ' +
  '([decision 006](decisions/006-ordering.md), [009](decisions/009-cost-of-an-event.md)). Not tried: claiming several events of one key together, ' +
  'which only publishers that take ordered batches could use.'

const SUSTAINED =
  'With 8 producers and 2 relays on two cores everything competes for the processor. Relays that are woken claim a few events ' +
  'at a time, so that an event is published within milliseconds, and the fixed cost of a claim is paid for few events. pg-boss polls, ' +
  'takes hundreds of jobs each time, and has 17 times the latency; with NOTIFY it handles a seventh of our rate. BullMQ stores in Redis ' +
  'and does not write in the transaction of the producer. PgQue settles batches (see “drain”). Tried: a pause of 10 or 20 ms ' +
  'between claims, which gave 12 or 20 % more events for two or four times the latency, and was not built ' +
  '([decision 009](decisions/009-cost-of-an-event.md)).'

const ENQUEUE =
  'An INSERT into the outbox costs the server 124 µs in our profiles, of which 64 to 75 µs are what a plain table does not ' +
  'have: one function that checks the fields, the limits of size and depth, the event id, the wake-up, and two or three index ' +
  'entries in the place of one. A graphile-worker job costs 248 µs. Tried: nine constraints as one function (45 of 140 µs saved), the WHEN ' +
  'clauses of triggers as functions (35 µs saved), no index entry for generated ids, and one wake-up for transactions that overlap ' +
  '([decision 007](decisions/007-outbox-table.md), [014](decisions/014-wake-ups.md)). The checks stay: a plain INSERT is to be as safe as `enqueue()`. pg-boss and PgQue check nothing ' +
  'in the table and, when they poll, send no notification; BullMQ writes to Redis.'

const ENQUEUE_NOISE = `${ENQUEUE} In the second round without keys, other work on the machine halved our figure; the first round shows 0.39.`

const LATENCY =
  'Two commits, each with a flush of the WAL, lie between the statement of the producer and the handler: its own and that of the ' +
  'claim; and a notification between them. graphile-worker and pg-boss on the same server are within a third of our median, in either direction. BullMQ ' +
  'hands a job over in the memory of Redis. An idle relay claims at once when it is notified; there is no delay to remove.'

const NOISE =
  'The loss is smaller than the spread: two rounds of the same variant differ by up to a quarter in this run. What waits costs a ' +
  'claim an index entry for each blocked key that it meets ([decision 006](decisions/006-ordering.md)). We cannot say more without a quieter machine.'

const HOT_KEY_SNAPSHOT =
  'While a snapshot is held, the index entries of finished events of the key cannot be removed, and the search for the head of ' +
  'the key walks past all of them. Its cost grows with the number of events that were published since the snapshot began. ' +
  'Starting after the last settled event would make it flat, and is wrong: a late commit or a replay would be passed over ' +
  '(8 real order violations in 19,000 events, [decision 003](decisions/003-claim-cursor.md)). We know of no lower bound that is safe. With 10,000 keys the ' +
  'goal is met, because each key has few entries.'

const WAL =
  'Every UPDATE copies the row, payload included, and Leasehold makes two of them and retains the last version; ' +
  'graphile-worker makes one and deletes the row. With keys the order is the other way round at 0.2 KB, because ' +
  'graphile-worker updates its queue twice for each job. Tried: payloads outside of the row; PostgreSQL does that only for rows of more than ' +
  '2 KB, whatever `toast_tuple_target` says. Fewer index entries helped little: most of it is payload.'

const BEATS = 'A statement renews at most 5,000 rows, so 10,000 take two. Up to 5,000 rows it is one.'

const HOT =
  'A renewal changes only `locked_until`, which no index contains, so it is a HOT update where the page has room for the new ' +
  'version. The pages of events that were claimed together are full, because their first versions, and those of the claim, are ' +
  'still there. Pages that were left half empty (`fillfactor` 40, the first edition) made renewals HOT, and stayed half ' +
  'empty for ever, which contradicts the goal of pages that are 85 % full. Most events are settled before their first ' +
  'renewal, and the cost of renewals is within its goal.'

const MEMORY =
  'What is in flight is bounded by `prefetchBytes`, 16 MiB. The rest is V8, whose young generation grows with the rate of ' +
  'allocation. `keepHeapSmall()` sets flags that limit it; `leasehold work` and `up` call it, ' +
  'and reach the goal. It cannot be called by a library in a process that belongs to somebody else, because it costs up to a third more ' +
  'processor time there.'

const WEBHOOKS =
  'The bare loop does no more than sign and send. A delivery also costs the server 420 µs and Node 370 to 430 µs for claim, lease, attempt record and ' +
  'settlement, and with two cores for the sender, the receiver and the server, that is what is missing. In earlier ' +
  'runs this came out between 0.74 and 0.87.'

/** `[{ scenario, check, text }]`; `text` is Markdown. */
export const EXPLANATIONS = [
  { scenario: 'drain', check: 'no key: ≥ 1.3 × the fastest peer', text: BATCHES },
  {
    scenario: 'drain',
    check: 'no key: ≥ 1.3 × the fastest peer that stores durably and settles each event by itself',
    text: DRAIN,
  },
  { scenario: 'drain', check: '10,000 keys: ≥ 2 × graphile-worker with queue_name', text: KEYS },
  { scenario: 'drain', check: '10,000 keys: ≥ 0.65 of our own drain without keys', text: KEYS },
  { scenario: 'drain', check: 'a stuck key: the others keep ≥ 0.95', text: NOISE },
  { scenario: 'drain', check: 'a stuck key written in bulk: the others keep ≥ 0.95', text: NOISE },
  { scenario: 'sustained', check: 'events/s ≥ 1.3 × the fastest peer', text: SUSTAINED },
  {
    scenario: 'sustained',
    check: 'events/s ≥ 1.3 × the fastest peer that stores durably and settles each event by itself',
    text: SUSTAINED,
  },
  { scenario: 'sustained', check: 'events/s ≥ 1.3 × the fastest peer that orders by key', text: SUSTAINED },
  { scenario: 'sustained', check: 'p99 latency at 70 % ≤ every peer', text: BATCHES },
  {
    scenario: 'enqueue',
    check: '10,000 keys: transactions/s ≥ 0.9 of a plain one-index table',
    text: ENQUEUE,
  },
  { scenario: 'enqueue', check: '10,000 keys: transactions/s ≥ every peer', text: ENQUEUE },
  {
    scenario: 'enqueue',
    check: '10,000 keys: transactions/s ≥ every peer that stores durably and settles each event by itself',
    text: ENQUEUE,
  },
  {
    scenario: 'enqueue',
    check: 'no key: transactions/s ≥ 0.9 of a plain one-index table',
    text: ENQUEUE_NOISE,
  },
  { scenario: 'enqueue', check: 'no key: transactions/s ≥ every peer', text: ENQUEUE_NOISE },
  {
    scenario: 'enqueue',
    check: 'no key: transactions/s ≥ every peer that stores durably and settles each event by itself',
    text: ENQUEUE_NOISE,
  },
  { scenario: 'latency', check: 'latency, p50 ≤ every peer', text: LATENCY },
  {
    scenario: 'latency',
    check: 'latency, p50 ≤ every peer that stores durably and settles each event by itself',
    text: LATENCY,
  },
  { scenario: 'latency', check: 'latency, p99 ≤ every peer', text: LATENCY },
  {
    scenario: 'latency',
    check: 'latency, p99 ≤ every peer that stores durably and settles each event by itself',
    text: LATENCY,
  },
  { scenario: 'retry-keys', check: 'the others keep ≥ 0.9', text: NOISE },
  {
    scenario: 'held-snapshot',
    check: 'one hot key: the last tenth ≥ 0.5 of the first',
    text: HOT_KEY_SNAPSHOT,
  },
  { scenario: 'held-snapshot', check: 'one hot key: all events within 60 s', text: HOT_KEY_SNAPSHOT },
  { scenario: 'bytes', check: '0.2 KB, no key: WAL ≤ 1.3 × graphile-worker', text: WAL },
  { scenario: 'bytes', check: '1 KB, no key: WAL ≤ 1.3 × graphile-worker', text: WAL },
  {
    scenario: 'heartbeats',
    check: 'renewal every 9 s (lease 30 s, the default): one statement per beat',
    text: BEATS,
  },
  {
    scenario: 'heartbeats',
    check: 'renewal every 0.9 s (lease 3 s): one statement per beat',
    text: BEATS,
  },
  {
    scenario: 'heartbeats',
    check: 'renewal every 9 s (lease 30 s, the default): the updates are HOT',
    text: HOT,
  },
  { scenario: 'heartbeats', check: 'renewal every 0.9 s (lease 3 s): the updates are HOT', text: HOT },
  { scenario: 'memory', check: 'a plain process, 0.2 KB: ≤ 150 MB', text: MEMORY },
  { scenario: 'memory', check: 'a plain process, 1 KB: ≤ 150 MB', text: MEMORY },
  { scenario: 'webhooks', check: '≥ 0.85 of a bare loop of signed requests', text: WEBHOOKS },
]
