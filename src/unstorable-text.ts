/** Names what PostgreSQL cannot store in a text, if the text contains it. */
export function unstorableText(text: string): string | undefined {
  if (text.includes('\0')) return String.raw`the character \u0000`
  return text.isWellFormed() ? undefined : 'half a surrogate pair'
}
