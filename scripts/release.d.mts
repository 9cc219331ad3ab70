export function versionOf(tag: string, manifest: { readonly version: string }): string

export function notesOf(changelog: string, version: string): string

export function channelOf(tag: string): 'latest' | 'next'

export function publishedManifest<Manifest extends object>(
  manifest: Manifest,
  repository: string,
): Manifest & {
  readonly homepage: string
  readonly bugs: { readonly url: string }
  readonly repository: { readonly type: 'git'; readonly url: string }
}

export function withAbsoluteLinks(page: string, repository: string, tag: string): string
