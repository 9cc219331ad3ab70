/**
 * Words that must be quoted as the name of a column or table: the reserved words of PostgreSQL 15 to 18 and the names
 * of its built-in types and functions with a grammar of their own (`pg_get_keywords()`, all but category U).
 */
const KEYWORDS: ReadonlySet<string> = new Set(
  `all analyse analyze and any array as asc asymmetric authorization between bigint binary bit boolean both case cast
  char character check coalesce collate collation column concurrently constraint create cross current_catalog
  current_date current_role current_schema current_time current_timestamp current_user dec decimal default deferrable
  desc distinct do else end except exists extract false fetch float for foreign freeze from full grant greatest group
  grouping having ilike in initially inner inout int integer intersect interval into is isnull join json json_array
  json_arrayagg json_exists json_object json_objectagg json_query json_scalar json_serialize json_table json_value
  lateral leading least left like limit localtime localtimestamp merge_action national natural nchar none normalize
  not notnull null nullif numeric offset on only or order out outer overlaps overlay placing position precision
  primary real references returning right row select session_user setof similar smallint some substring symmetric
  system_user table tablesample then time timestamp to trailing treat trim true union unique user using values varchar
  variadic verbose when where window with xmlattributes xmlconcat xmlelement xmlexists xmlforest xmlnamespaces
  xmlparse xmlpi xmlroot xmlserialize xmltable`.split(/\s+/),
)

/** Quotes one identifier, whatever is in it. Like `quote_ident`, it does not quote a plain name. */
export function quoteIdentifier(name: string): string {
  return /^[a-z_][a-z0-9_]*$/.test(name) && !KEYWORDS.has(name) ? name : `"${name.replaceAll('"', '""')}"`
}

/** Quotes a schema-qualified name. */
export function quoteQualified(schema: string, name: string): string {
  return `${quoteIdentifier(schema)}.${quoteIdentifier(name)}`
}

/** Quotes a string literal, for statements that take no parameters, such as DDL. */
export function quoteLiteral(value: string): string {
  const quoted = `'${value.replaceAll("'", "''")}'`
  return value.includes('\\') ? ` E${quoted.replaceAll('\\', '\\\\')}` : quoted
}
