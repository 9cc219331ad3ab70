export interface Page {
  /** Below docs, such as `guides/outbox.md`. */
  readonly path: string
  readonly text: string
  readonly title: string
  /** One sentence. */
  readonly description: string
}

export interface Link {
  readonly target: string
  readonly line: number
}

export declare const DOCS: string
export declare function readPages(): Promise<Page[]>
export declare function navigation(pages: readonly Page[]): { text: string; pages: Page[] }[]
export declare function addressOf(path: string): string
export declare function slug(heading: string): string
export declare function anchorsOf(text: string): string[]
export declare function linksOf(text: string): Link[]
export declare function linkedFile(
  file: string,
  target: string,
): { readonly file: string; readonly anchor: string | undefined } | undefined
export declare function withoutCode(text: string): string
