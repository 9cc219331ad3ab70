// `npm run sbom`: prints the bill of materials of the package (CycloneDX 1.5): every package that is installed with it, and
// those that are bundled into the dashboard, as package-lock.json has them. `npm sbom --omit dev` is no help here: it leaves
// out every package that a development dependency needs too, such as pg. The optional peers are the user's choice.
import { readFileSync } from 'node:fs'
import { pathToFileURL } from 'node:url'
import { BUNDLED } from './audit.mjs'

const read = (file) => JSON.parse(readFileSync(new URL(`../${file}`, import.meta.url), 'utf8'))

/** @returns the bill of materials, as an object. The same lock file always gives the same one. */
export function billOfMaterials({ manifest, lock, bundled }) {
  const { packages } = lock
  const root = { ref: `${manifest.name}@${manifest.version}`, dependsOn: [] }
  const components = new Map()
  const dependencies = [root]

  /** Where Node finds a package that is asked for from this path. */
  function locate(name, from) {
    for (let at = from; ; at = at.slice(0, Math.max(0, at.lastIndexOf('/node_modules/')))) {
      const path = `${at === '' ? '' : `${at}/`}node_modules/${name}`
      if (path in packages) return path
      if (at === '') return undefined
    }
  }

  function add(name, from, isOptional = false) {
    const path = locate(name, from)
    if (path === undefined) {
      if (isOptional) return []
      throw new Error(`package-lock.json has no ${name}, which ${from || manifest.name} needs`)
    }
    const entry = packages[path]
    const ref = `${name}@${entry.version}`
    if (components.has(ref)) return [ref]
    components.set(ref, component(ref, name, entry))
    const node = { ref, dependsOn: [] }
    dependencies.push(node)
    node.dependsOn = [
      ...Object.keys(entry.dependencies ?? {}).flatMap((each) => add(each, path)),
      ...Object.keys(entry.optionalDependencies ?? {}).flatMap((each) => add(each, path, true)),
    ].sort()
    return [ref]
  }

  root.dependsOn = [...Object.keys(manifest.dependencies), ...bundled].flatMap((name) => add(name, '')).sort()
  return {
    bomFormat: 'CycloneDX',
    specVersion: '1.5',
    version: 1,
    metadata: {
      component: {
        'bom-ref': root.ref,
        type: 'library',
        name: manifest.name,
        version: manifest.version,
        description: manifest.description,
        licenses: [{ license: { id: manifest.license } }],
        purl: `pkg:npm/${manifest.name}@${manifest.version}`,
      },
    },
    components: [...components.values()].sort((a, b) => (a['bom-ref'] < b['bom-ref'] ? -1 : 1)),
    dependencies: dependencies.sort((a, b) => (a.ref < b.ref ? -1 : 1)),
  }
}

function component(ref, name, { version, license, integrity }) {
  const [, digest] = /^sha512-(.+)$/.exec(integrity ?? '') ?? []
  return {
    'bom-ref': ref,
    type: 'library',
    name,
    version,
    ...(digest === undefined
      ? {}
      : { hashes: [{ alg: 'SHA-512', content: Buffer.from(digest, 'base64').toString('hex') }] }),
    // An expression can also be the name of one licence.
    ...(license === undefined ? {} : { licenses: [{ expression: license }] }),
    purl: `pkg:npm/${name.replace('@', '%40')}@${version}`,
  }
}

if (process.argv[1] !== undefined && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const bill = billOfMaterials({
    manifest: read('package.json'),
    lock: read('package-lock.json'),
    bundled: BUNDLED,
  })
  process.stdout.write(`${JSON.stringify(bill, undefined, 2)}\n`)
}
