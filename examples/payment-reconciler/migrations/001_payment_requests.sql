-- The table as its owner has had it for years: nothing here knows of leases.
create schema if not exists app;

create table if not exists app.payment_requests (
  id uuid primary key default gen_random_uuid(),
  address text not null default encode(uuid_send(gen_random_uuid()), 'hex'),
  amount bigint not null check (amount > 0),
  status text not null default 'pending' check (status in ('pending', 'detected', 'confirmed', 'expired')),
  tx_hash text,
  created_at timestamptz not null default now(),
  expires_at timestamptz not null default now() + interval '15 minutes'
);

create table if not exists app.blocks (
  height bigint primary key,
  hash text not null
);
