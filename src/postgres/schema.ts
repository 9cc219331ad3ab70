import { EMPTY_PATH } from './catalog-path.ts'
import type { Database } from './database.ts'
import { quoteLiteral } from './identifiers.ts'

/** The first lines of `schema.sql`. */
export const SCHEMA_FILE_HEADER = `-- The schema after all migrations, as PostgreSQL sees it. Written by \`npm run schema\`; a test compares it.

`

/** The name that every dump shows, so that dumps of differently named schemas can be compared. */
const SHOWN_AS = 'leasehold'

/**
 * Returns the schema as text, read from the catalogs. The text depends neither on the schema's name nor on the order in
 * which its objects were created. It looks like SQL and is meant for reading and comparing, not for execution.
 */
export async function describeSchema(db: Pick<Database, 'transaction'>, schema: string): Promise<string> {
  return db.transaction(async (tx) => {
    await tx.query({ text: 'set transaction isolation level repeatable read, read only' })
    await tx.query({ text: EMPTY_PATH })
    const sections: string[] = []
    for (const text of Object.values(SCHEMA_QUERIES)) {
      const { rows } = await tx.query<{ definition: string }>({ text, values: [schema] })
      const definitions = rows.map(({ definition }) => normalise(definition, schema))
      sections.push(...definitions.sort(byCodeUnit))
    }
    return `${sections.join('\n\n')}\n`
  })
}

function normalise(definition: string, schema: string): string {
  const lines = definition.split('\n').map((line) => line.trimEnd())
  return spellingsOf(schema)
    .reduce((text, [from, to]) => text.replaceAll(from, to), lines.join('\n'))
    .trim()
}

/** The forms in which the schema's name is printed: before a dot, in a grant, and in a function's own search_path. */
function spellingsOf(schema: string): readonly (readonly [string | RegExp, string])[] {
  const bare = escapePattern(schema)
  const quoted = `"${schema.replaceAll('"', '""')}"`
  return [
    [`${quoted}.`, `${SHOWN_AS}.`],
    [new RegExp(String.raw`(?<![\w$"])${bare}\.`, 'g'), `${SHOWN_AS}.`],
    [` on schema ${quoted} to `, ` on schema ${SHOWN_AS} to `],
    [`SET search_path TO ${quoteLiteral(schema)}`, `SET search_path TO '${SHOWN_AS}'`],
    [`SET search_path TO ${quoteLiteral(quoted)}`, `SET search_path TO '${SHOWN_AS}'`],
  ]
}

function escapePattern(text: string): string {
  return text.replaceAll(/[.*+?^${}()|[\]\\]/g, String.raw`\$&`)
}

function byCodeUnit(a: string, b: string): number {
  if (a === b) return 0
  return a < b ? -1 : 1
}

/**
 * One statement for each kind of object. It takes the schema's name and returns a `definition` for each object. They are
 * in the order of the dump: later objects may depend on earlier ones.
 */
const SCHEMA_QUERIES = {
  types: `
      select format(E'create type %s as enum (%s);', t.oid::regtype,
          (select string_agg(quote_literal(e.enumlabel), ', ' order by e.enumsortorder)
             from pg_enum e where e.enumtypid = t.oid)) as definition
        from pg_type t
       where t.typnamespace = (select oid from pg_namespace where nspname = $1) and t.typtype = 'e'
      union all
      select format(E'create domain %s as %s%s;', t.oid::regtype, format_type(t.typbasetype, t.typtypmod),
          coalesce((select string_agg(' ' || pg_get_constraintdef(c.oid), '' order by c.conname)
             from pg_constraint c where c.contypid = t.oid and c.contype = 'c'), ''))
        from pg_type t
       where t.typnamespace = (select oid from pg_namespace where nspname = $1) and t.typtype = 'd'`,

  // Sequences of identity columns are part of their table.
  sequences: `
      select format('create sequence %s as %s increment by %s minvalue %s maxvalue %s start with %s;',
          s.seqrelid::regclass, format_type(s.seqtypid, null), s.seqincrement, s.seqmin, s.seqmax, s.seqstart) as definition
        from pg_sequence s
        join pg_class c on c.oid = s.seqrelid
       where c.relnamespace = (select oid from pg_namespace where nspname = $1)
         and not exists (select from pg_depend d
                          where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'i')`,

  // Not-null constraints are shown with their column. Since PostgreSQL 18 they are in pg_constraint as well.
  tables: `
      select format(E'create %stable %s (\\n%s\\n)%s%s%s;',
          case c.relpersistence when 'u' then 'unlogged ' else '' end,
          c.oid::regclass,
          (select string_agg('  ' || line, E',\\n' order by constrained, position, line) from (
            select false as constrained, a.attnum as position, format('%s %s%s%s%s%s%s',
                quote_ident(a.attname),
                format_type(a.atttypid, a.atttypmod),
                case when a.attstorage = t.typstorage then ''
                     else ' storage ' || case a.attstorage when 'p' then 'plain' when 'm' then 'main'
                                                           when 'e' then 'external' else 'extended' end end,
                case when a.attcollation <> t.typcollation
                     then (select format(' collate %I.%I', n.nspname, o.collname)
                             from pg_collation o join pg_namespace n on n.oid = o.collnamespace
                            where o.oid = a.attcollation) else '' end,
                case a.attidentity when 'a' then ' generated always as identity'
                                   when 'd' then ' generated by default as identity' else '' end,
                case when d.oid is null then ''
                     when a.attgenerated = 's' then format(' generated always as (%s) stored', pg_get_expr(d.adbin, d.adrelid))
                     when a.attgenerated = 'v' then format(' generated always as (%s) virtual', pg_get_expr(d.adbin, d.adrelid))
                     else format(' default %s', pg_get_expr(d.adbin, d.adrelid)) end,
                case when a.attnotnull then ' not null' else '' end) as line
              from pg_attribute a
              join pg_type t on t.oid = a.atttypid
              left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
             where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
            union all
            select true, 0, format('constraint %I %s', k.conname, pg_get_constraintdef(k.oid))
              from pg_constraint k where k.conrelid = c.oid and k.contype not in ('n', 't')) lines),
          case when c.relkind = 'p' then format(' partition by %s', pg_get_partkeydef(c.oid)) else '' end,
          case when c.relispartition
               then format(' -- partition of %s %s', (select i.inhparent::regclass from pg_inherits i where i.inhrelid = c.oid),
                           pg_get_expr(c.relpartbound, c.oid)) else '' end,
          case when c.reloptions is null then ''
               else format(' with (%s)', (select string_agg(o, ', ' order by o) from unnest(c.reloptions) o)) end) as definition
        from pg_class c
       where c.relnamespace = (select oid from pg_namespace where nspname = $1) and c.relkind in ('r', 'p')`,

  // The index of a constraint is shown with its table.
  indexes: `
      select pg_get_indexdef(i.indexrelid) || ';' as definition
        from pg_index i
        join pg_class c on c.oid = i.indexrelid
       where c.relnamespace = (select oid from pg_namespace where nspname = $1)
         and not exists (select from pg_constraint k where k.conindid = i.indexrelid and k.contype in ('p', 'u', 'x'))`,

  views: `
      select format(E'create %sview %s%s as\\n%s',
          case c.relkind when 'm' then 'materialized ' else '' end,
          c.oid::regclass,
          case when c.reloptions is null then ''
               else format(' with (%s)', (select string_agg(o, ', ' order by o) from unnest(c.reloptions) o)) end,
          pg_get_viewdef(c.oid)) as definition
        from pg_class c
       where c.relnamespace = (select oid from pg_namespace where nspname = $1) and c.relkind in ('v', 'm')`,

  functions: `
      select rtrim(pg_get_functiondef(p.oid), E'\\n') || ';' as definition
        from pg_proc p
       where p.pronamespace = (select oid from pg_namespace where nspname = $1) and p.prokind in ('f', 'p')`,

  triggers: `
      select pg_get_triggerdef(t.oid) || ';' as definition
        from pg_trigger t
        join pg_class c on c.oid = t.tgrelid
       where c.relnamespace = (select oid from pg_namespace where nspname = $1)
         and not t.tgisinternal and t.tgparentid = 0`,

  // The privileges of roles other than the owner. That everybody may execute functions is the default and not shown.
  grants: `
      select format('grant %s on schema "%s" to %s;', lower(string_agg(acl.privilege_type, ', ' order by acl.privilege_type)),
          replace(n.nspname, '"', '""'), grantee.name) as definition
        from pg_namespace n
        cross join lateral aclexplode(n.nspacl) acl
        cross join lateral (select case when acl.grantee = 0 then 'public' else quote_ident(pg_get_userbyid(acl.grantee)) end as name) grantee
       where n.nspname = $1 and acl.grantee <> n.nspowner
       group by n.oid, n.nspname, grantee.name
      union all
      select format('grant %s on %s to %s;', lower(string_agg(acl.privilege_type, ', ' order by acl.privilege_type)),
          c.oid::regclass, grantee.name)
        from pg_class c
        cross join lateral aclexplode(c.relacl) acl
        cross join lateral (select case when acl.grantee = 0 then 'public' else quote_ident(pg_get_userbyid(acl.grantee)) end as name) grantee
       where c.relnamespace = (select oid from pg_namespace where nspname = $1) and acl.grantee <> c.relowner
       group by c.oid, grantee.name
      union all
      select format('grant %s (%s) on %s to %s;', lower(acl.privilege_type),
          string_agg(quote_ident(a.attname), ', ' order by a.attnum), c.oid::regclass, grantee.name)
        from pg_class c
        join pg_attribute a on a.attrelid = c.oid and not a.attisdropped
        cross join lateral aclexplode(a.attacl) acl
        cross join lateral (select case when acl.grantee = 0 then 'public' else quote_ident(pg_get_userbyid(acl.grantee)) end as name) grantee
       where c.relnamespace = (select oid from pg_namespace where nspname = $1) and acl.grantee <> c.relowner
       group by c.oid, acl.privilege_type, grantee.name
      union all
      select format('grant %s on function %s to %s;', lower(acl.privilege_type), p.oid::regprocedure,
          quote_ident(pg_get_userbyid(acl.grantee)))
        from pg_proc p
        cross join lateral aclexplode(p.proacl) acl
       where p.pronamespace = (select oid from pg_namespace where nspname = $1) and acl.grantee not in (0, p.proowner)`,

  comments: `
      select format('comment on %s %s is %L;',
          case when o.type like '% column' then 'column'
               when o.type like '% constraint' then 'constraint' else o.type end,
          o.identity, d.description) as definition
        from pg_description d
        cross join lateral pg_identify_object(d.classoid, d.objoid, d.objsubid) o
        join (select oid, nspname from pg_namespace where nspname = $1) n
          on (d.classoid = 'pg_namespace'::regclass and d.objoid = n.oid)
          or (d.classoid = 'pg_class'::regclass and exists (select from pg_class x where x.oid = d.objoid and x.relnamespace = n.oid))
          or (d.classoid = 'pg_proc'::regclass and exists (select from pg_proc x where x.oid = d.objoid and x.pronamespace = n.oid))
          or (d.classoid = 'pg_type'::regclass and exists (select from pg_type x where x.oid = d.objoid and x.typnamespace = n.oid))
          or (d.classoid = 'pg_constraint'::regclass and exists (select from pg_constraint x where x.oid = d.objoid and x.connamespace = n.oid))
          or (d.classoid = 'pg_trigger'::regclass and exists (
                select from pg_trigger x join pg_class c on c.oid = x.tgrelid where x.oid = d.objoid and c.relnamespace = n.oid))`,
}
