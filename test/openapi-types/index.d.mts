/** The types of an OpenAPI document, as a syntax tree of TypeScript 5. */
export function generateTypes(document: object): Promise<unknown>
export function astToString(tree: unknown): string
