-- The HTTP API: its keys, its sessions, and the answers to requests that may be repeated.

create table api_keys (
  id uuid primary key default new_event_id(),
  name text not null,
  role text not null,
  tenant text,
  hash bytea not null,
  created_at timestamptz not null default now(),
  created_by text not null,
  expires_at timestamptz,
  last_used_at timestamptz,
  revoked_at timestamptz,
  revoked_by text,
  constraint api_keys_role_is_known check (role in ('read', 'operate', 'admin')),
  constraint api_keys_admin_has_no_tenant check (tenant is null or role <> 'admin'),
  constraint api_keys_tenant_is_not_empty check (tenant <> ''),
  constraint api_keys_name_has_1_to_100_characters check (char_length(name) between 1 and 100),
  constraint api_keys_hash_is_sha256 check (octet_length(hash) = 32),
  constraint api_keys_revoked_by_exactly_when_revoked check ((revoked_at is null) = (revoked_by is null))
);

-- The audit names keys by their names.
create unique index api_keys_name on api_keys (name);

comment on table api_keys is 'The keys of the HTTP API. A key is shown once, when it is created; only its hash is stored.';
comment on column api_keys.id is 'Id of the key, which is a part of the key itself.';
comment on column api_keys.name is 'The name by which the audit names whoever uses the key. Never used twice, not even after the key was revoked.';
comment on column api_keys.role is 'read, operate or admin. Each may do what the one before it may, and more.';
comment on column api_keys.tenant is 'The only tenant whose endpoints and deliveries the key can see and change. Null: all tenants, and everything else.';
comment on column api_keys.hash is 'SHA-256 of the key.';
comment on column api_keys.created_at is 'When the key was created.';
comment on column api_keys.created_by is 'Who created the key.';
comment on column api_keys.expires_at is 'From this time on the key is refused. Null: never.';
comment on column api_keys.last_used_at is 'When the key was last used, to within a minute.';
comment on column api_keys.revoked_at is 'When the key was revoked. From then on it is refused.';
comment on column api_keys.revoked_by is 'Who revoked the key.';
comment on index api_keys_name is 'A name belongs to one key.';

create table api_sessions (
  hash bytea primary key,
  kind text not null,
  key_id uuid references api_keys on delete cascade,
  principal text not null,
  role text not null,
  tenant text,
  created_at timestamptz not null default now(),
  expires_at timestamptz not null,
  constraint api_sessions_kind_is_known check (kind in ('session', 'portal')),
  constraint api_sessions_role_is_known check (role in ('read', 'operate', 'admin')),
  constraint api_sessions_admin_has_no_tenant check (tenant is null or role <> 'admin'),
  constraint api_sessions_tenant_is_not_empty check (tenant <> ''),
  constraint api_sessions_portal_has_a_tenant check (kind <> 'portal' or tenant is not null),
  constraint api_sessions_hash_is_sha256 check (octet_length(hash) = 32)
);

create index api_sessions_expires_at on api_sessions (expires_at);

comment on table api_sessions is 'Who is signed in to the HTTP API: the dashboard with a key, and the portal of a tenant with a link. Only the hash of a session''s token is stored.';
comment on column api_sessions.hash is 'SHA-256 of the token, which has 256 random bits.';
comment on column api_sessions.kind is 'session: a key opened it, and the browser sends its token in a cookie. portal: a link opened it, and the page sends its token in the Authorization header.';
comment on column api_sessions.key_id is 'The key with which the session, or its link, was made. The session ends when that key is revoked or expires. Null: a login of the user''s own, or a command, made the link.';
comment on column api_sessions.principal is 'The name of the key, or portal:<name>. The audit names a tenant before it.';
comment on column api_sessions.role is 'read, operate or admin.';
comment on column api_sessions.tenant is 'The only tenant whose endpoints and deliveries the session can see and change. Null: all tenants, and everything else.';
comment on column api_sessions.created_at is 'When the session was opened.';
comment on column api_sessions.expires_at is 'From this time on the session is refused.';
comment on index api_sessions_expires_at is 'Expired sessions are removed.';

create table api_portal_links (
  hash bytea primary key,
  key_id uuid references api_keys on delete cascade,
  tenant text not null,
  role text not null,
  name text,
  created_at timestamptz not null default now(),
  expires_at timestamptz not null,
  constraint api_portal_links_role_is_known check (role in ('read', 'operate')),
  constraint api_portal_links_tenant_is_not_empty check (tenant <> ''),
  constraint api_portal_links_name_has_1_to_100_characters check (char_length(name) between 1 and 100),
  constraint api_portal_links_hash_is_sha256 check (octet_length(hash) = 32)
);

create index api_portal_links_expires_at on api_portal_links (expires_at);

comment on table api_portal_links is 'Links that open the portal of a tenant, each of them once: whoever uses one gets a session, and the row is removed. Who made a link is in the audit.';
comment on column api_portal_links.hash is 'SHA-256 of the token in the link, which has 256 random bits.';
comment on column api_portal_links.key_id is 'The key with which the link was made. The link opens nothing once that key is revoked or has expired. Null: a login of the user''s own, or a command, made it.';
comment on column api_portal_links.tenant is 'The tenant whose endpoints and deliveries are shown.';
comment on column api_portal_links.role is 'read or operate: what the session may do.';
comment on column api_portal_links.name is 'Who it is for. The audit names what they do <tenant>/portal:<name>. Null: <tenant>/portal.';
comment on column api_portal_links.created_at is 'When the link was made.';
comment on column api_portal_links.expires_at is 'From this time on the link is refused.';
comment on index api_portal_links_expires_at is 'Expired links are removed.';

create table api_requests (
  principal text not null,
  idempotency_key text not null,
  request_hash bytea not null,
  status int not null,
  answer jsonb,
  created_at timestamptz not null default now(),
  primary key (principal, idempotency_key)
);

create index api_requests_created_at on api_requests (created_at);

comment on table api_requests is 'The answers to POST requests with an Idempotency-Key, written in the transaction of the change. A repeated request gets the same answer and changes nothing. Kept for a day.';
comment on column api_requests.principal is 'Who sent the request.';
comment on column api_requests.idempotency_key is 'The Idempotency-Key of the request.';
comment on column api_requests.request_hash is 'SHA-256 of method, path and body. With the same key, another request is refused.';
comment on column api_requests.status is 'The HTTP status of the answer.';
comment on column api_requests.answer is 'The answer, without secrets: these are shown only once.';
comment on column api_requests.created_at is 'When the request was answered.';
comment on index api_requests_created_at is 'Old answers are removed.';

-- Bulk changes are found by their id.
create index audit_changes on audit ((details ->> 'changeId'), id) where details ? 'changeId';

comment on index audit_changes is 'The entries of a bulk change, in their order: the last one is its state.';

-- A key that is limited to a tenant acts as a role of its own, <prefix>_tenant. 006_roles.sql limits that role to the rows of
-- the tenant that leasehold.tenant names; for every other role these policies change nothing.
alter table webhook_endpoints enable row level security;
alter table webhook_outbox enable row level security;
alter table audit enable row level security;
create policy webhook_endpoints_all on webhook_endpoints using (true) with check (true);
create policy webhook_outbox_all on webhook_outbox using (true) with check (true);
create policy audit_all on audit using (true) with check (true);

comment on policy webhook_endpoints_all on webhook_endpoints is 'Roles other than that of a tenant see all endpoints that they are granted.';
comment on policy webhook_outbox_all on webhook_outbox is 'Roles other than that of a tenant see all deliveries that they are granted.';
comment on policy audit_all on audit is 'Roles other than that of a tenant see all entries that they are granted.';
