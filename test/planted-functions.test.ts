/**
 * PostgreSQL prefers a function or an operator whose argument types fit better, wherever it is on the search_path. So its own
 * are certain to be called only where no other schema is on it. Here others have planted better ones of every name we call.
 */
import { afterAll, beforeAll, expect, it } from 'vitest'
import { withAdmin } from './support/admin.ts'
import { callLeasehold, type Called } from './support/command-line.ts'
import { useDatabase } from './support/database.ts'
import { removeDirectory, temporaryDirectory } from './support/directory.ts'
import { filesOf, projectFile } from './support/project-files.ts'

const database = useDatabase()
let directory = ''
let planted = 0

/** Every name that our SQL, or our code, calls without a schema. */
async function calledNames(): Promise<string[]> {
  const paths = [...(await filesOf('src')), ...(await filesOf('migrations'))]
  const texts = await Promise.all(paths.filter((path) => /\.(?:ts|sql)$/.test(path)).map(projectFile))
  return [
    ...new Set(texts.flatMap((text) => [...text.matchAll(/\b([a-z_0-9]+)\(/g)].map(([, name = '']) => name))),
  ]
}

/** Plants functions with PostgreSQL's own signatures, and with others that fit a call at least as well; also operators. */
const PLANT = `do $plant$
declare
  home text; called record; parameters text; operand text;
  trap constant text := 'begin raise ''planted %s.%s ran as %%'', current_user; end';
begin
  foreach home in array array['leasehold', 'public'] loop
    for called in
      select proname, proargtypes::oid[] as types, provariadic <> 0 as is_variadic from pg_catalog.pg_proc
      where pronamespace = 'pg_catalog'::regnamespace and proname = any (current_setting('test.called')::text[])
        and prokind in ('f', 'a') and pronargs <= 5 and not proargtypes::oid[] && array['internal'::regtype, 'cstring'::regtype]::oid[]
    loop
      for parameters in
        select string_agg(case
            when t in ('"any"'::regtype, 'anyelement'::regtype) then value
            when t = 'anyarray'::regtype then 'text[]'
            when t = 'oid'::regtype then object
            when t = 'name'::regtype then label
            when t in ('int8'::regtype, 'float8'::regtype) then number
            else t::regtype::text end, ', ' order by n)
        from unnest(called.types) with ordinality as own (t, n), unnest(array['text', 'name', 'int', 'timestamptz']) as value,
          unnest(array['oid', 'text']) as object, unnest(array['name', 'text']) as label, unnest(array['int8', 'float8', 'int4']) as number
        group by value, object, label, number
        union
        select unnest(array['text, text', 'text, name', 'text, int', 'text, text, text']) where called.is_variadic
      loop
        begin
          execute format('create function %I.%I(%s) returns text language plpgsql as %L', home, called.proname, parameters,
            format(trap, home, called.proname));
        exception when duplicate_function or feature_not_supported or invalid_function_definition then null;
        end;
      end loop;
    end loop;
    foreach operand in array array['name', 'int', 'bigint', 'oid', 'bool', '"char"', 'regclass', 'smallint'] loop
      execute format('create function %I.trap(text, %s) returns text language plpgsql as %L', home, operand, format(trap, home, '||'));
      execute format('create operator %1$I.|| (leftarg = text, rightarg = %2$s, function = %1$I.trap)', home, operand);
    end loop;
    execute format('create function %I.trap(oid, int) returns bool language plpgsql as %L', home, format(trap, home, '='));
    execute format('create operator %1$I.= (leftarg = oid, rightarg = int, function = %1$I.trap)', home);
    execute format('create operator %1$I.<> (leftarg = oid, rightarg = int, function = %1$I.trap)', home);
  end loop;
end
$plant$`

beforeAll(async () => {
  directory = await temporaryDirectory()
  await withAdmin(database.url, async (admin) => {
    await admin.query('set search_path to pg_catalog')
    await admin.query("select set_config('test.called', $1::text[]::text, false)", [await calledNames()])
    await admin.query(PLANT)
    const { rows } = await admin.query<{ planted: number }>(
      "select count(*)::int as planted from pg_catalog.pg_proc where prosrc like '%planted%'",
    )
    planted = rows[0]?.planted ?? 0
    for (const name of ['migrations', 'workers', 'outbox', 'settings', 'audit'])
      await admin.query(`create table public.${name} (planted int)`)
  })
})
afterAll(async () => removeDirectory(directory))

async function asSuperuser(...args: readonly string[]): Promise<Called> {
  return callLeasehold(args, { databaseUrl: database.url, workingDirectory: directory })
}

it.each([
  'roles',
  'migrate',
  'migrate --schema another',
  'migrate --schema another --buckets 2',
  'doctor',
  'status',
  'outbox list',
  'audit',
  'settings list',
])('a superuser who runs `leasehold %s` runs nothing that others have planted', async (command) => {
  expect(planted).toBeGreaterThan(200)
  const { stdout, stderr } = await asSuperuser(...command.split(' '))
  expect(stdout + stderr).not.toMatch(/planted .* ran as|is not unique/)
  expect(stderr).toBe('')
})

it('a superuser who runs what `leasehold roles --print` prints runs nothing that others have planted', async () => {
  const { stdout } = await asSuperuser('roles', '--print')
  await withAdmin(database.url, async (admin) => {
    await expect(admin.query(stdout)).resolves.toBeDefined()
  })
})
