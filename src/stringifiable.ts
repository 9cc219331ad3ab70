/**
 * JSON has no bigint, and JSON.stringify throws over one. Objects with a fencing token that are handed to users have a
 * `toJSON`, which writes the token as its decimal digits.
 */
interface WithToken {
  readonly token: bigint
}

/** The fields of an object, as JSON.stringify is to see them. */
export function tokenAsText<Fields extends WithToken>(
  fields: Fields,
): Omit<Fields, 'token'> & { readonly token: string } {
  return { ...fields, token: fields.token.toString() }
}

/** Gives the object a `toJSON` that is not enumerable: a copy (`{ ...object }`) does not have it. */
export function stringifiable<Fields extends { readonly token: bigint | null }>(object: Fields): Fields {
  return Object.defineProperty(object, 'toJSON', { value: toJson })
}

function toJson(this: { readonly token: bigint | null }): object {
  return { ...this, token: this.token?.toString() ?? null }
}
