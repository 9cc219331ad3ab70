export interface BillOfMaterials {
  readonly metadata: { readonly component: { readonly name: string; readonly version: string } }
  readonly components: readonly {
    readonly name: string
    readonly version: string
    readonly purl: string
    readonly licenses?: unknown
    readonly hashes?: readonly { readonly alg: string; readonly content: string }[]
  }[]
  readonly dependencies: readonly { readonly ref: string; readonly dependsOn: readonly string[] }[]
}

export function billOfMaterials(input: {
  readonly manifest: object
  readonly lock: object
  readonly bundled: readonly string[]
}): BillOfMaterials
