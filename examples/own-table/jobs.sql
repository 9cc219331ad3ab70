create table if not exists public.jobs (
  id bigint generated always as identity primary key,
  url text not null,
  status text not null default 'waiting'
);
