export type AuditReport =
  | { readonly unanswered: string }
  | { readonly unanswered?: undefined; readonly serious: readonly string[]; readonly all: readonly string[] }

export const BUNDLED: readonly string[]

export function readReport(stdout: string): AuditReport

export function judge(
  production: AuditReport,
  everything: AuditReport,
  options: { readonly shipped: readonly string[]; readonly isRequired: boolean },
): { readonly text: string; readonly failed: boolean }
