create table public.emails (
  id bigint generated always as identity primary key,
  recipient text not null,
  sent_at timestamptz,
  lease_owner text,
  lease_until timestamptz,
  lease_token bigint not null default 0
);
create index emails_waiting on public.emails (id) where sent_at is null;
create index emails_leased on public.emails (id) where lease_owner is not null;
