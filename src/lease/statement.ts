import { createHash } from 'node:crypto'

/** A generated statement, and what each of its parameters stands for, in order. */
export interface LeaseStatement {
  readonly name: string
  readonly text: string
  readonly parameters: readonly string[]
}

/** Numbers the parameters of one statement; the same name is the same parameter. */
export interface Parameters {
  (name: string, type: string): string
  readonly names: string[]
}

export function parameters(): Parameters {
  const names: string[] = []
  const number = (name: string, type: string): string => {
    if (!names.includes(name)) names.push(name)
    return `$${names.indexOf(name) + 1}::${type}`
  }
  return Object.assign(number, { names })
}

/** Names a statement after its verb and its text, so that two tables never share a prepared statement. */
export function statement(verb: string, parameter: Parameters, text: string): LeaseStatement {
  const hash = createHash('sha256').update(text).digest('hex').slice(0, 16)
  return { name: `leasehold_${verb.slice(0, 30)}_${hash}`, text: text.trim(), parameters: parameter.names }
}
