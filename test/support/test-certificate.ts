import { readFileSync } from 'node:fs'

/** A key and a certificate that protect nothing: `test/fixtures/tls/README.md` says for which names. */
export function testCertificate(name: 'right' | 'wrong-name'): {
  readonly key: string
  readonly cert: string
} {
  const read = (part: string): string =>
    readFileSync(new URL(`../fixtures/tls/${name}.${part}.pem`, import.meta.url), 'utf8')
  return { key: read('key'), cert: read('cert') }
}
