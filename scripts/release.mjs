// What .github/workflows/release.yml does beyond commands of npm:
//   node scripts/release.mjs prepare <owner/name> <tag>   in a checkout of its own: the package names its repository, and
//                                                         the links of its README lead there, to the files of this tag
//   node scripts/release.mjs notes <tag>                  prints the section of CHANGELOG.md
//   node scripts/release.mjs channel <tag>                prints the tag of npm: `next` for a pre-release, else `latest`
import { readFile, writeFile } from 'node:fs/promises'
import { pathToFileURL } from 'node:url'

const file = (name) => new URL(`../${name}`, import.meta.url)

/** The version of a tag. Refuses one that is not the version of package.json. */
export function versionOf(tag, manifest) {
  if (tag !== `v${manifest.version}`)
    throw new Error(`the tag ${tag} is not the version ${manifest.version} of package.json`)
  return manifest.version
}

/** The section of a version, without its heading. */
export function notesOf(changelog, version) {
  const heading = `## [${version}]`
  const sections = changelog.split(/^(?=## )/m)
  const found = sections.find((section) => section.startsWith(heading))
  const notes = found?.slice(found.indexOf('\n')).trim() ?? ''
  if (notes === '') throw new Error(`CHANGELOG.md has no section "${heading} - <date>" with text in it`)
  return `${notes}\n`
}

export function channelOf(tag) {
  return tag.includes('-') ? 'next' : 'latest'
}

/** The manifest as it is published. */
export function publishedManifest(manifest, repository) {
  const home = `https://github.com/${repository}`
  return {
    ...manifest,
    homepage: `${home}#readme`,
    bugs: { url: `${home}/issues` },
    repository: { type: 'git', url: `git+${home}.git` },
  }
}

/** A page whose relative links and pictures are those of a tag: the package does not contain them. */
export function withAbsoluteLinks(page, repository, tag) {
  const home = `https://github.com/${repository}`
  // Every second part is code.
  return page
    .split(/(^```.*?^```$|`[^`\n]*`)/ms)
    .map((part, i) => (i % 2 === 1 ? part : part.replaceAll(LINK, absolute)))
    .join('')

  function absolute(_, mark, text, path) {
    const kind = mark === '!' ? 'raw' : 'blob'
    return `${mark}${text}(${home}/${kind}/${tag}/${path.replace(/^\.\//, '')})`
  }
}

const LINK = /(!?)(\[[^\]]*\])\((?!#|[a-z]+:)([^)\s]+)\)/g

async function main([command, ...args]) {
  const manifest = JSON.parse(await readFile(file('package.json'), 'utf8'))
  if (command === 'prepare') {
    const [repository, tag] = args
    const version = versionOf(tag, manifest)
    notesOf(await readFile(file('CHANGELOG.md'), 'utf8'), version)
    await writeFile(
      file('package.json'),
      `${JSON.stringify(publishedManifest(manifest, repository), undefined, 2)}\n`,
    )
    for (const page of ['README.md', 'CHANGELOG.md'])
      await writeFile(file(page), withAbsoluteLinks(await readFile(file(page), 'utf8'), repository, tag))
  } else if (command === 'notes') {
    const changelog = await readFile(file('CHANGELOG.md'), 'utf8')
    process.stdout.write(notesOf(changelog, versionOf(args[0], manifest)))
  } else if (command === 'channel') {
    process.stdout.write(`${channelOf(args[0])}\n`)
  } else throw new Error(`there is no command ${command}: give prepare, notes or channel`)
}

if (process.argv[1] !== undefined && import.meta.url === pathToFileURL(process.argv[1]).href)
  await main(process.argv.slice(2)).catch((error) => {
    process.stderr.write(`${error.message}\n`)
    process.exitCode = 1
  })
