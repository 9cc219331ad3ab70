// Ends the brokers of a test run that was killed and cannot do it itself.
// usage: node watch.mjs <directory>; stdin is held open by the test run.
import { readFile, rm } from 'node:fs/promises'
import { setTimeout as delay } from 'node:timers/promises'

const [, , directory] = process.argv

process.stdin.resume()
await new Promise((resolve) => process.stdin.once('close', resolve))

// After an orderly end the directory is gone, and with it the file: nothing to do.
const written = await readFile(`${directory}/groups`, 'utf8').catch(() => '')
for (const group of written
  .split('\n')
  .map(Number)
  .filter((pid) => pid > 1)) {
  for (let polls = 0; polls < 200 && kill(group); polls += 1) await delay(20)
}
await rm(directory, { recursive: true, force: true })

function kill(group) {
  try {
    return process.kill(-group, 'SIGKILL')
  } catch {
    return false
  }
}
