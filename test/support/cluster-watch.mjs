// Ends the test server when the test run is killed and cannot do it itself.
// usage: node cluster-watch.mjs <directory of the server>; stdin is held open by the test run.
import { readFile, rm } from 'node:fs/promises'
import { setTimeout as delay } from 'node:timers/promises'

const [, , directory] = process.argv

process.stdin.resume()
await new Promise((resolve) => process.stdin.once('close', resolve))

// After an orderly end the directory is gone, and with it the pid file: nothing to do.
const pid = Number.parseInt(await readFile(`${directory}/data/postmaster.pid`, 'utf8').catch(() => ''), 10)
if (pid > 0) {
  signal(pid, 'SIGINT')
  for (let polls = 0; polls < 600 && signal(pid, 0); polls += 1) await delay(50)
}
await rm(directory, { recursive: true, force: true })

function signal(target, name) {
  try {
    return process.kill(target, name)
  } catch {
    return false
  }
}
