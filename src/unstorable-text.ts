/** Names what PostgreSQL cannot store in a text, if the text contains it. */
export function unstorableText(text: string): string | undefined {
  if (text.includes('\0')) return String.raw`the character \u0000`
  return text.isWellFormed() ? undefined : 'half a surrogate pair'
}

/** The same, with the reason and the remedy. */
export function unstorable(text: string): string | undefined {
  const what = unstorableText(text)
  if (what === undefined) return undefined
  const remedy = text.includes('\0') ? 'remove it' : 'do not cut a text inside a character'
  return `${what}, which PostgreSQL cannot store: ${remedy}`
}
