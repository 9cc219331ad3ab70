export type AuditReport =
  | { readonly unanswered: string }
  | { readonly unanswered?: undefined; readonly serious: number; readonly all: number }

export function readReport(stdout: string): AuditReport
