/** What is kept of an answer's body: valid text on one line, whatever the bytes were. */

/** Controls, and what turns the direction of a line or breaks it: an excerpt is shown in terminals and pages. */
const UNPRINTABLE = /[\p{Cc}\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/gu

export function excerptOf(chunks: readonly Uint8Array[], bytes: number): string {
  const start = Buffer.concat(chunks).subarray(0, bytes)
  // As a stream: a character that was cut in two at the end is left out, instead of shown as broken.
  const text = new TextDecoder('utf-8').decode(start, { stream: true })
  return text
    .replaceAll(/[\t\n\r]+/g, ' ')
    .replaceAll(UNPRINTABLE, '')
    .trim()
}
