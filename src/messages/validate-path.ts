const PLAIN = /^[A-Za-z_$][\w$]*$/

/** `payload` and `['items', 0, 'a b']` as a person would write it: `payload.items[0]["a b"]`. */
export function pathOf(root: string, keys: readonly PropertyKey[]): string {
  return keys.reduce<string>((path, key) => {
    if (typeof key === 'number' || (typeof key === 'string' && /^\d+$/.test(key))) return `${path}[${key}]`
    if (typeof key === 'string') return PLAIN.test(key) ? `${path}.${key}` : `${path}[${JSON.stringify(key)}]`
    return `${path}[${String(key)}]`
  }, root)
}
