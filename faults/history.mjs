// The history of a run: one JSON object per line, appended by whoever sees it happen. README.md lists the types.
import { closeSync, openSync, readFileSync, readSync, writeSync } from 'node:fs'

/**
 * Opens the history to append. The operating system appends each line whole and in one order for all processes, so that
 * the position of a line says what came first, whatever the clocks of the processes say.
 */
export function openHistory(path) {
  const file = openSync(path, 'a')
  return {
    path,
    write: (line) => void writeSync(file, `${JSON.stringify(line, plain)}\n`),
    close: () => closeSync(file),
  }
}

export function readHistory(path) {
  return readFileSync(path, 'utf8')
    .split('\n')
    .filter((text) => text !== '')
    .map((text) => JSON.parse(text))
}

/** Reads the history while it grows: each call of `next` returns the lines that are new. */
export function followHistory(path) {
  const file = openSync(path, 'r')
  const buffer = Buffer.alloc(1 << 20)
  let rest = ''
  return {
    next() {
      for (let count; (count = readSync(file, buffer)) > 0;) rest += buffer.toString('utf8', 0, count)
      const lines = rest.split('\n')
      rest = lines.pop()
      return lines.map((text) => JSON.parse(text))
    },
    close: () => closeSync(file),
  }
}

function plain(_, value) {
  if (typeof value === 'bigint') return String(value)
  return value instanceof Error ? `${value.code ?? value.name}: ${value.message}` : value
}
