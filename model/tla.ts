/** Checks `lease.tla` with the npm package tla-checker, within small bounds, and compares it with `lease.ts`. */
import { readFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { check_spec_with_options, initSync } from 'tla-checker'

import { check } from './checker.ts'
import { type Bounds, INVARIANTS, leaseModel, PROTOCOL, type Protocol } from './lease.ts'

interface TlaResult {
  readonly isOk: boolean
  readonly states: number
  /** What is wrong, e.g. which invariant does not hold. */
  readonly message: string
  /** Of a counterexample: its states, including the first. */
  readonly length: number
}

interface Comparison {
  readonly name: string
  readonly states: number
  readonly inTla: TlaResult
}

const ALL: Bounds = {
  workers: 2,
  keys: [undefined],
  lease: 1,
  maxAttempts: 2,
  maxClaims: 1,
  maxStray: 0,
  late: [],
  claims: [],
  outcomes: ['done', 'dead', 'retry', 'release'],
  eviction: 'none',
}

const OF_A_KEY: Bounds = { ...ALL, workers: 1, keys: ['k', 'k'], claims: ['next'], outcomes: ['done'] }

/** Together they take every action of the specification. */
const COMPARED: readonly (readonly [string, Bounds])[] = [
  ['two workers', ALL],
  [
    'one worker, renewals, late requests',
    { ...ALL, workers: 1, lease: 2, maxStray: 1, outcomes: ['done'], eviction: 'dead' },
  ],
  ['two rows of a key, late requests', { ...OF_A_KEY, maxStray: 1 }],
  [
    'two rows of a key and one without, late commits',
    { ...OF_A_KEY, keys: ['k', 'k', undefined], late: [0], claims: ['next', 'any'] },
  ],
]

export async function checkInTla(): Promise<Comparison[]> {
  const specification = await openSpecification()
  return COMPARED.map(([name, bounds]) => ({
    name,
    states: check(leaseModel(bounds), 1_000_000).states,
    inTla: specification(bounds, PROTOCOL),
  }))
}

type Specification = (bounds: Bounds, protocol: Protocol) => TlaResult

export async function openSpecification(): Promise<Specification> {
  const path = createRequire(`${process.cwd()}/package.json`).resolve('tla-checker/tla_checker_bg.wasm')
  initSync({ module: await readFile(path) })
  const source = await readFile('model/lease.tla', 'utf8')
  return (bounds, protocol) => {
    const options = { cfg_source: cfgOf(bounds, protocol), max_states: 1_000_000, max_depth: 1_000 }
    const answer: unknown = JSON.parse(check_spec_with_options(source, JSON.stringify(options)))
    return resultOf(answer)
  }
}

/** The answer of the package is a JSON document without a schema; missing fields fail the comparison. */
function resultOf(answer: unknown): TlaResult {
  const fields: Readonly<Record<string, unknown>> = typeof answer === 'object' ? { ...answer } : {}
  const { success, states_explored: states, error_message: message, trace } = fields
  return {
    isOk: success === true,
    states: Number(states),
    message: typeof message === 'string' ? message : '',
    length: Array.isArray(trace) ? (trace.join('\n').match(/^State \d+/gm)?.length ?? 0) : 0,
  }
}

function cfgOf(bounds: Bounds, protocol: Protocol): string {
  const constants = {
    Workers: set(Array.from({ length: bounds.workers }, (_, w) => `w${w + 1}`)),
    Rows: `{${bounds.keys.map((_, r) => r + 1).join(', ')}}`,
    Key: `<<${bounds.keys.map((key) => text(key ?? 'none')).join(', ')}>>`,
    Lease: bounds.lease,
    MaxAttempts: bounds.maxAttempts,
    MaxClaims: bounds.maxClaims,
    MaxStray: bounds.maxStray,
    Late: `{${bounds.late.map((r) => r + 1).join(', ')}}`,
    Claims: set(bounds.claims),
    Outcomes: set(bounds.outcomes),
    Eviction: text(bounds.eviction),
    Guard: text(protocol.guard),
    ReplayKeepsToken: truth(protocol.replayKeepsToken),
    TrustFrom: text(protocol.trustFrom),
    ClockLag: protocol.clockLag,
    UniqueKey: truth(protocol.uniqueKey),
    Recheck: truth(protocol.recheck),
    NextOfKey: text(protocol.nextOfKey),
    Hears: text(protocol.hears),
    ReapLooksAtTime: truth(protocol.reapLooksAtTime),
  }
  const assigned = Object.entries(constants).map(([name, value]) => `${name} = ${value}`)
  return ['INIT Init', 'NEXT Next', 'CONSTANTS', ...assigned, `INVARIANTS ${INVARIANTS.join(' ')}`].join('\n')
}

function text(value: string): string {
  return `"${value}"`
}

function set(values: readonly string[]): string {
  return `{${values.map(text).join(', ')}}`
}

function truth(value: boolean): string {
  return value ? 'TRUE' : 'FALSE'
}
