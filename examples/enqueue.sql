-- The function takes its arguments by position or by name, and returns the id of the row.
select leasehold.enqueue('order.paid', '{"order": 7}');
select leasehold.enqueue(
  event_type => 'order.shipped',
  payload => '{"order": 7}',
  ordering_key => 'order-7',
  headers => '{"source": "warehouse"}',
  available_at => now() + interval '5 minutes',
  event_id => '0197a1c2-7d00-7000-8000-000000000007'
);

-- A plain INSERT works as well; the other columns have defaults.
insert into leasehold.outbox (event_type, payload, ordering_key)
select 'order.closed', jsonb_build_object('order', n), 'order-' || n from generate_series(1, 3) as n;
