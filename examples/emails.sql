create table public.emails (
  id bigint generated always as identity primary key,
  recipient text not null,
  due_at timestamptz not null default now(),
  sent_at timestamptz,
  failed_at timestamptz,
  attempts int not null default 0,
  expiries int not null default 0,
  last_error text,
  lease_owner text,
  lease_until timestamptz,
  lease_token bigint not null default 0
);
create index emails_waiting on public.emails (due_at, id) where sent_at is null and failed_at is null;
create index emails_suspect on public.emails (due_at, id) where sent_at is null and failed_at is null and expiries >= 2;
create index emails_leased on public.emails (id) where lease_owner is not null;
