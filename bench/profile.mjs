// Where the time of a Node process went, from the .cpuprofile files that V8 wrote.
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'

/** Milliseconds of self time by function, largest first. */
export async function selfTimes(directory) {
  const byFunction = new Map()
  for (const file of await readdir(directory)) {
    if (!file.endsWith('.cpuprofile')) continue
    const { nodes, samples, timeDeltas } = JSON.parse(await readFile(join(directory, file), 'utf8'))
    const callFrames = new Map(nodes.map(({ id, callFrame }) => [id, callFrame]))
    for (const [i, sample] of samples.entries()) {
      const name = sourceOf(callFrames.get(sample))
      byFunction.set(name, (byFunction.get(name) ?? 0) + timeDeltas[i] / 1_000)
    }
  }
  return [...byFunction].map(([name, ms]) => ({ name, ms })).sort((a, b) => b.ms - a.ms)
}

function sourceOf({ functionName, url, lineNumber }) {
  const name = functionName === '' ? '(anonymous)' : functionName
  const file = url.replace(/^.*\/(node_modules|dist|bench)\//, '$1/')
  return file === '' ? name : `${name} ${file}:${lineNumber + 1}`
}
