/** `npm run model`: checks the protocol and the mutants, and prints what was found. Exits with 1 if anything is wrong. */
import { check, type Checked, stuckStates } from './checker.ts'
import { type Configuration, FULL, type Mutant, MUTANTS, protocolOf, SHORT } from './configurations.ts'
import { INVARIANTS, isFinished, isProgress, leaseModel, type State } from './lease.ts'
import { checkInTla } from './tla.ts'

const MAX_STATES = 5_000_000
let failures = 0

function print(line = ''): void {
  process.stdout.write(`${line}\n`)
}

function fail(line: string): void {
  failures += 1
  print(line)
}

function timed<Result>(work: () => Result): { readonly result: Result; readonly seconds: string } {
  const before = process.cpuUsage()
  const result = work()
  const { user, system } = process.cpuUsage(before)
  return { result, seconds: `${((user + system) / 1e6).toFixed(1)} s` }
}

function printTrace({ violation }: Checked<State>): void {
  violation?.trace.forEach(({ action }, i) => print(`    ${String(i + 1).padStart(2)}  ${action}`))
}

function checkProtocol({ name, bounds, invariants = INVARIANTS, progress = false }: Configuration): void {
  const { result, seconds } = timed(() => check(leaseModel(bounds, undefined, invariants), MAX_STATES))
  const { states, steps, depth, violation } = result
  const size = `${count(states)} states, ${count(steps)} steps, depth ${depth}, ${seconds}`
  if (violation === undefined) print(`ok    ${name}: ${size}`)
  else {
    fail(`FAIL  ${name}: ${violation.invariant} does not hold`)
    printTrace(result)
  }
  if (!progress) return
  const finished = isFinished(bounds)
  const { stuck } = stuckStates(leaseModel(bounds), finished, isProgress, MAX_STATES)
  if (stuck.length === 0) print(`      and from every state all rows can be finished`)
  else
    fail(
      `FAIL  ${name}: from ${stuck.length} states not all rows can be finished, e.g. ${JSON.stringify(stuck[0])}`,
    )
}

function checkMutant(mutant: Mutant): void {
  const { name, bounds, breaks, holds = [] } = mutant
  const result = check(leaseModel(bounds, protocolOf(mutant), [breaks]), MAX_STATES)
  if (result.violation === undefined) return fail(`FAIL  ${name}: ${breaks} holds, so the model cannot tell`)
  print(`ok    ${name}: ${breaks} is broken after ${result.violation.trace.length} steps`)
  printTrace(result)
  if (holds.length === 0) return
  const rest = check(leaseModel(bounds, protocolOf(mutant), holds), MAX_STATES)
  if (rest.violation === undefined) print(`      and the other properties hold: ${count(rest.states)} states`)
  else fail(`FAIL  ${name}: ${rest.violation.invariant} is broken as well`)
}

async function compareWithTla(): Promise<void> {
  for (const { name, states, inTla } of await checkInTla()) {
    if (inTla.isOk && inTla.states === states) print(`ok    ${name}: ${count(states)} states in both`)
    else fail(`FAIL  ${name}: ${count(states)} states here; in lease.tla ${inTla.states}, ${inTla.message}`)
  }
}

function count(n: number): string {
  return n.toLocaleString('en')
}

const configurations = process.argv.includes('--short') ? SHORT : FULL
print(`The protocol (${INVARIANTS.join(', ')})`)
configurations.forEach(checkProtocol)
print()
print('Mutants, each with its shortest counterexample')
MUTANTS.forEach(checkMutant)
print()
print('lease.tla, checked by tla-checker')
await compareWithTla()
process.exitCode = failures === 0 ? 0 : 1
