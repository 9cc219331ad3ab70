/** No column is cut to fewer characters than this, or than its heading has. */
const NARROWEST = 8
const GAP = '  '

/**
 * Rows of text under each other, each column as wide as its widest cell. Given a width, the widest columns are cut
 * until a line fits into it. Whatever a cell holds, it cannot move the cursor.
 */
export function columns(rows: readonly (readonly string[])[], width = Infinity): string {
  const cells = rows.map((row) => row.map(printable))
  const headings = cells[0] ?? []
  const widths = headings.map((_, i) => Math.max(...cells.map((row) => row[i]?.length ?? 0)))
  const narrowest = headings.map((heading) => Math.max(NARROWEST, heading.length))
  const room = width - GAP.length * (widths.length - 1)
  while (widths.reduce((sum, wide) => sum + wide, 0) > room) {
    const spare = widths.map((wide, i) => (wide > (narrowest[i] ?? 0) ? wide : 0))
    const widest = Math.max(...spare)
    if (widest === 0) break
    widths[spare.indexOf(widest)] = widest - 1
  }
  return cells
    .map((row) =>
      row
        .map((cell, i) => cut(cell, widths[i] ?? 0).padEnd(widths[i] ?? 0))
        .join(GAP)
        .trimEnd(),
    )
    .join('\n')
}

/** The text on one line, without anything that a terminal would obey: types, keys and errors come from anywhere. */
export function printable(text: string): string {
  return text.replaceAll(/[\p{Cc}\p{Bidi_Control}\u2028\u2029]/gu, ' ').replaceAll(/ {2,}/g, ' ')
}

/** JSON that a terminal can be shown: what it would obey is escaped, which means the same. */
export function printableJson(value: unknown, indent = 2): string {
  const text = JSON.stringify(
    value,
    (_, part: unknown) => (typeof part === 'bigint' ? String(part) : part),
    indent,
  )
  return text.replaceAll(/[\u007f-\u009f\p{Bidi_Control}\u2028\u2029]/gu, (sign) => {
    return `\\u${sign.charCodeAt(0).toString(16).padStart(4, '0')}`
  })
}

function cut(text: string, width: number): string {
  return text.length <= width ? text : `${text.slice(0, width - 1)}…`
}

/** As a person says it: `4 s`, `12 min`, `3 h`, `2 d`. */
export function duration(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1_000))
  if (seconds < 120) return `${seconds} s`
  if (seconds < 7_200) return `${Math.round(seconds / 60)} min`
  return seconds < 172_800 ? `${Math.round(seconds / 3_600)} h` : `${Math.round(seconds / 86_400)} d`
}

/** `3 min ago`, `in 20 s`. */
export function relative(moment: Date, now: Date): string {
  const ms = moment.getTime() - now.getTime()
  return ms > 500 ? `in ${duration(ms)}` : `${duration(-ms)} ago`
}

/** `1 event`, `12,000 events`. */
export function counted(count: number, one: string, many = `${one}s`): string {
  return `${grouped(count)} ${count === 1 ? one : many}`
}

/** `12,000`. */
export function grouped(count: number): string {
  return count.toLocaleString('en-US')
}
