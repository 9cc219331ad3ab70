-- Arguments are given by position or by name. The result is the number of endpoints that get the event.
select leasehold.send_webhook('order.paid', '{"order": 7}');
select leasehold.send_webhook(
  event_type => 'order.shipped',
  payload => '{"order": 7}',
  tenant => 'acme',
  ordering_key => 'order-7',
  headers => '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}',
  available_at => now() + interval '5 minutes',
  event_id => '0197a1c2-7d00-7000-8000-000000000007'
);
