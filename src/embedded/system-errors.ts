/** Whether an error carries one of these codes: a system call's (`ENOENT`) or an SQLSTATE (`57P03`). */
export function hasCode(error: unknown, ...codes: readonly string[]): boolean {
  return (
    typeof error === 'object' &&
    error !== null &&
    'code' in error &&
    typeof error.code === 'string' &&
    codes.includes(error.code)
  )
}
