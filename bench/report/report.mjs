// `npm --prefix bench start -- report`: writes docs/benchmarks.md and docs/benchmarks/*.svg from the record of a run.
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { EXPLANATIONS } from './explanations.mjs'
import { writePage } from './page.mjs'
import { publishable, readRecord } from './record.mjs'

export const USAGE = `npm --prefix bench start -- report --json file [--out dir]

  --json file   the record that \`all\` wrote
  --out dir     where benchmarks.md and benchmarks/*.svg are written (../docs). There, only the record of
                a full or short run of committed code is accepted
`

const print = (text) => process.stdout.write(`${text}\n`)
const DOCS = resolve(import.meta.dirname, '../../docs')

export async function report(args) {
  const { values } = parseArgs({
    args,
    options: {
      json: { type: 'string' },
      out: { type: 'string' },
      help: { type: 'boolean', default: false },
    },
  })
  if (values.help) {
    print(USAGE)
    return
  }
  if (values.json === undefined) throw new Error('--json: give the file that `all` wrote')
  const record = await readRecord(values.json)
  const out = resolve(values.out ?? DOCS)
  const reason = publishable(record)
  if (out === DOCS && reason !== undefined)
    throw new Error(`${values.json}: ${reason}. Give --out to write the page elsewhere`)
  const unexplained = await writeReport(record, out)
  for (const text of unexplained) print(`missed, and not explained in report/explanations.mjs: ${text}`)
  print(`written: ${join(out, 'benchmarks.md')}`)
}

/** Charts of an earlier report are removed. Returns the missed goals that nobody has explained. */
export async function writeReport(record, out, explanations = EXPLANATIONS) {
  const template = await readFile(join(import.meta.dirname, 'template.md'), 'utf8')
  const { page, charts, unexplained } = writePage(record, template, explanations)
  const directory = join(out, 'benchmarks')
  await mkdir(directory, { recursive: true })
  for (const file of await readdir(directory)) if (file.endsWith('.svg')) await rm(join(directory, file))
  for (const { file, svg } of charts) await writeFile(join(directory, file), svg)
  await writeFile(join(out, 'benchmarks.md'), page)
  return unexplained
}
