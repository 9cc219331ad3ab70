export interface RequirementRow {
  readonly id: string
  readonly must: string
  readonly code: string
  readonly proofs: readonly string[]
}

export const PENDING: string
export function rowsOf(page: string): RequirementRow[]
export function idsIn(source: string): string[]
export function proofs(): Promise<Map<string, string[]>>
export function written(page: string, proved: ReadonlyMap<string, readonly string[]>): string
