// npm run faults -- [--only name,name] [--seed n] [--short] [--soak] [--storm events] [--check history]
import { parseArgs } from 'node:util'
import { FAULTS, faultsNamed, SOAK, stormFor } from './faults.mjs'
import { check } from './checker.mjs'
import { openRun, runFault } from './harness.mjs'
import { readHistory } from './history.mjs'

const { values } = parseArgs({
  options: {
    only: { type: 'string' },
    seed: { type: 'string' },
    short: { type: 'boolean', default: false },
    soak: { type: 'boolean', default: false },
    storm: { type: 'string' },
    check: { type: 'string' },
    list: { type: 'boolean', default: false },
  },
})
const say = (text) => process.stdout.write(`${text}\n`)

function columns(...texts) {
  const widths = [26, 7, 7, 11, 10, 7]
  return texts
    .map((text, i) => (i === 0 ? String(text).padEnd(widths[i]) : String(text).padStart(widths[i] ?? 0)))
    .join(' ')
}

function line({ name, skipped, fired, rows, duplicates, recoveryMs, seconds, objections }) {
  if (skipped !== undefined) return `${name.padEnd(26)} skipped: ${skipped}`
  const recovery = recoveryMs === undefined ? 'never' : `${(recoveryMs / 1_000).toFixed(1)} s`
  const verdict = objections.length === 0 ? 'ok' : `${objections.length} OBJECTIONS`
  return `${columns(name, fired, rows, duplicates, recovery, `${seconds.toFixed(0)} s`)}  ${verdict}`
}

const SHOWN_OBJECTIONS = 10

function complain({ objections = [], history, notes = [] }) {
  for (const note of notes) say(`  ${note}`)
  for (const { rule, text } of objections.slice(0, SHOWN_OBJECTIONS)) say(`  ${rule}: ${text}`)
  if (objections.length > SHOWN_OBJECTIONS) say(`  and ${objections.length - SHOWN_OBJECTIONS} more`)
  if (history !== undefined) say(`  history: ${history}`)
}

function chosenFaults() {
  if (values.soak) return [SOAK]
  if (values.storm === undefined) return faultsNamed(values.only)
  const events = Number(values.storm)
  if (!Number.isInteger(events) || events < 1)
    throw new Error(`--storm is "${values.storm}"; it must be the number of events, e.g. 25000`)
  return [stormFor(events)]
}

async function main() {
  if (values.list) {
    for (const { name, title } of FAULTS) say(`${name.padEnd(26)} ${title}`)
    return
  }
  if (values.check !== undefined) {
    const checked = check(readHistory(values.check))
    complain({ objections: checked.objections })
    say(JSON.stringify({ ...checked, objections: checked.objections.length }))
    if (checked.objections.length > 0) process.exitCode = 1
    return
  }
  const seed = values.seed ?? String(Math.floor(Math.random() * 1e9))
  const chosen = chosenFaults()
  say(`seed ${seed}`)
  say(`${columns('fault', 'fired', 'rows', 'duplicates', 'recovery', 'took')}  verdict`)
  const run = await openRun()
  try {
    for (const fault of chosen) {
      const result = await runFault(fault, { run, seed, short: values.short })
      say(line(result))
      complain(result)
      if ((result.objections?.length ?? 0) > 0) process.exitCode = 1
    }
  } finally {
    await run.close()
  }
}

await main()
