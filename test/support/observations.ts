import { readdir, readFile } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'

/** One look at a row: by whom, and from when to when on the clock that all processes of the machine share. */
export interface Look {
  readonly row: string
  readonly by: string
  readonly begin: bigint
  /** Absent when the process died meanwhile. */
  readonly end: bigint | undefined
}

/** What the observers of the example wrote down: see `journal` in examples/payment-reconciler/observe.mjs. */
export async function readLooks(path: string): Promise<Look[]> {
  const folder = dirname(path)
  const files = (await readdir(folder)).filter((file) => file.startsWith(`${basename(path)}.`))
  const looks = files.map(async (file) =>
    looksOf(file.split('.').at(-1) ?? '', await readFile(join(folder, file), 'utf8')),
  )
  return (await Promise.all(looks)).flat()
}

function looksOf(by: string, text: string): Look[] {
  const running = new Map<string, bigint>()
  const looks: Look[] = []
  for (const line of text.split('\n').filter(Boolean)) {
    const [what, row = '', at = '0'] = line.split(' ')
    if (what === 'begin') {
      running.set(row, BigInt(at))
      continue
    }
    const begin = running.get(row)
    if (begin === undefined) throw new Error(`${by} ended a look at ${row} that it had not begun`)
    running.delete(row)
    looks.push({ row, by, begin, end: BigInt(at) })
  }
  return [...looks, ...[...running].map(([row, begin]) => ({ row, by, begin, end: undefined }))]
}

/** Looks at the same row that were going on at once. One that a killed process left unended went on until its death. */
export function overlaps(looks: readonly Look[], deaths: ReadonlyMap<string, bigint> = new Map()): string[] {
  const byRow = new Map<string, Look[]>()
  for (const look of looks) byRow.set(look.row, [...(byRow.get(look.row) ?? []), look])
  return [...byRow].flatMap(([row, ofRow]) => {
    const inOrder = ofRow.toSorted((a, b) => (a.begin < b.begin ? -1 : 1))
    return inOrder.flatMap((look, i) => {
      const next = inOrder[i + 1]
      const end = look.end ?? deaths.get(look.by)
      if (end === undefined) return [`${row}: ${look.by} never ended its look, and nobody killed it`]
      return next !== undefined && next.begin < end ? [`${row}: by ${look.by} and ${next.by} at once`] : []
    })
  })
}
