// The cheapest table that could keep an event: its columns and a primary key. Nobody reads it; it is what an INSERT costs.
import { withClient } from '../client.mjs'
import { clientProducer, prepared } from '../producer.mjs'

export function plainTable({ inTransaction }) {
  return {
    schema: 'bench_plain',
    table: 'bench_plain.event',

    async migrate({ url }) {
      await withClient(url, async (client) =>
        client.query(`create schema bench_plain;
          create table bench_plain.event (
            id bigint generated always as identity primary key,
            event_type text not null,
            ordering_key text,
            payload jsonb not null,
            created_at timestamptz not null default now())`),
      )
    },

    openProducer: async ({ url }) =>
      clientProducer(url, {
        inTransaction,
        write: prepared(
          'insert into bench_plain.event (event_type, payload, ordering_key) values ($1, $2, $3)',
          ({ key, payload }) => ['bench.happened', JSON.stringify(payload), key],
        ),
      }),
  }
}
