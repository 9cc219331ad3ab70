/**
 * A small explicit-state model checker: visits every reachable state breadth first, checks the invariants in each, and
 * reports the shortest sequence of actions that leads to a violation.
 */

export interface Step<State> {
  /** The action, with what it is about: "Reap row 1". */
  readonly action: string
  readonly next: State
}

export interface Model<State> {
  readonly initial: State
  /** Every step that is possible in this state. */
  readonly steps: (state: State, visit: (action: string, next: State) => void) => void
  /** States with the same text are the same. */
  readonly encode: (state: State) => string
  readonly decode: (text: string) => State
  readonly invariants: Readonly<Record<string, (state: State) => boolean>>
}

export interface Violation<State> {
  readonly invariant: string
  /** From the initial state, in the fewest steps. */
  readonly trace: readonly Step<State>[]
}

export interface Checked<State> {
  /** Different states; with a violation, those that were visited before it. */
  readonly states: number
  readonly steps: number
  /** The number of steps to the state that is farthest away. */
  readonly depth: number
  readonly violation: Violation<State> | undefined
  /** How often each kind of action (its first word) was a step. One that never was has not been checked. */
  readonly actions: ReadonlyMap<string, number>
}

export class TooManyStates extends Error {}

export function check<State>(model: Model<State>, maxStates: number): Checked<State> {
  const states = new StateSet(model.encode(model.initial))
  const actions = new Map<string, number>()
  const invariants = Object.entries(model.invariants)
  let steps = 0
  let depth = 0
  let lastOfDepth = 0
  let violated: { readonly invariant: string; readonly at: number } | undefined

  function visit(action: string, next: State, from: number): void {
    steps += 1
    const kind = kindOf(action)
    actions.set(kind, (actions.get(kind) ?? 0) + 1)
    if (violated !== undefined) return
    const at = states.add(model.encode(next), from)
    if (at === undefined) return
    const broken = invariants.find(([, holds]) => !holds(next))
    if (broken !== undefined) violated = { invariant: broken[0], at }
  }

  for (let at = 0; at < states.size; at += 1) {
    if (states.size > maxStates)
      throw new TooManyStates(`more than ${maxStates} states: raise the limit, or lower the bounds`)
    if (at > lastOfDepth) {
      depth += 1
      lastOfDepth = states.size - 1
    }
    model.steps(model.decode(states.text(at)), (action, next) => visit(action, next, at))
    if (violated !== undefined) break
  }
  const violation =
    violated === undefined
      ? undefined
      : { invariant: violated.invariant, trace: traceTo(model, states, violated.at) }
  return { states: states.size, steps, depth, violation, actions }
}

/**
 * The reachable states from which no state of the goal can be reached by the actions that `counts`. None: whatever has
 * happened, the model can still get there without help.
 */
export function stuckStates<State>(
  model: Model<State>,
  goal: (state: State) => boolean,
  counts: (action: string) => boolean,
  maxStates: number,
): { readonly states: number; readonly stuck: readonly State[] } {
  const states = new StateSet(model.encode(model.initial))
  const from: number[] = []
  const to: number[] = []
  const reaching: number[] = []
  for (let at = 0; at < states.size; at += 1) {
    if (states.size > maxStates) throw new TooManyStates(`more than ${maxStates} states`)
    const state = model.decode(states.text(at))
    if (goal(state)) reaching.push(at)
    model.steps(state, (action, next) => {
      const text = model.encode(next)
      const target = states.add(text, at) ?? states.indexOf(text)
      if (!counts(action)) return
      from.push(at)
      to.push(target)
    })
  }
  const into = sourcesByTarget(states.size, from, to)
  const canReach = new Uint8Array(states.size)
  for (const at of reaching) canReach[at] = 1
  for (let at = reaching.pop(); at !== undefined; at = reaching.pop()) {
    for (const source of into(at)) {
      if (canReach[source] === 1) continue
      canReach[source] = 1
      reaching.push(source)
    }
  }
  const stuck: State[] = []
  canReach.forEach((can, at) => {
    if (can === 0) stuck.push(model.decode(states.text(at)))
  })
  return { states: states.size, stuck }
}

/** Only the text of a state is retained, and the state from which it was reached first. */
class StateSet {
  readonly #indexes = new Map<string, number>()
  readonly #texts: string[] = []
  readonly #parents: number[] = []

  constructor(initial: string) {
    this.add(initial, 0)
  }

  get size(): number {
    return this.#texts.length
  }

  /** Undefined: it is known. */
  add(text: string, parent: number): number | undefined {
    if (this.#indexes.has(text)) return undefined
    const at = this.#texts.push(text) - 1
    this.#indexes.set(text, at)
    this.#parents.push(parent)
    return at
  }

  indexOf(text: string): number {
    return this.#indexes.get(text) ?? 0
  }

  text(at: number): string {
    return this.#texts[at] ?? ''
  }

  parent(at: number): number {
    return this.#parents[at] ?? 0
  }
}

/** The actions are not retained: each is found once more from its two states. */
function traceTo<State>(model: Model<State>, states: StateSet, last: number): Step<State>[] {
  const trace: Step<State>[] = []
  for (let at = last; at !== 0; at = states.parent(at)) {
    let found: Step<State> | undefined
    model.steps(model.decode(states.text(states.parent(at))), (action, next) => {
      if (found === undefined && model.encode(next) === states.text(at)) found = { action, next }
    })
    if (found !== undefined) trace.unshift(found)
  }
  return trace
}

function sourcesByTarget(
  states: number,
  from: readonly number[],
  to: readonly number[],
): (at: number) => Int32Array {
  const starts = new Int32Array(states + 1)
  for (const target of to) starts[target + 1] = (starts[target + 1] ?? 0) + 1
  for (let at = 0; at < states; at += 1) starts[at + 1] = (starts[at + 1] ?? 0) + (starts[at] ?? 0)
  const next = starts.slice()
  const sources = new Int32Array(from.length)
  to.forEach((target, i) => {
    const place = next[target] ?? 0
    sources[place] = from[i] ?? 0
    next[target] = place + 1
  })
  return (at) => sources.subarray(starts[at], starts[at + 1])
}

function kindOf(action: string): string {
  const end = action.indexOf(' ')
  return end === -1 ? action : action.slice(0, end)
}
