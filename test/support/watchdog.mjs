// Ends the servers of a test run that was killed and could not end them itself.
// usage: node watchdog.mjs <directory>; the test run holds stdin open. The directory may have a PostgreSQL server
// (data/postmaster.pid) and a file `groups` with the process groups of other servers, one per line.
import { readFile, rm } from 'node:fs/promises'
import { setTimeout as delay } from 'node:timers/promises'

const [, , directory] = process.argv

process.stdin.resume()
await new Promise((resolve) => process.stdin.once('close', resolve))

// After an orderly end the directory does not exist any more, and there is nothing to do.
const postmaster = Number.parseInt(await read(`${directory}/data/postmaster.pid`), 10)
if (postmaster > 0) {
  signal(postmaster, 'SIGINT')
  for (let polls = 0; polls < 600 && signal(postmaster, 0); polls += 1) await delay(50)
}
const groups = (await read(`${directory}/groups`)).split('\n').map(Number)
for (const group of groups.filter((pid) => pid > 1)) {
  for (let polls = 0; polls < 200 && signal(-group, 'SIGKILL'); polls += 1) await delay(20)
}
// The servers of a directory inside it may still be ending.
await rm(directory, { recursive: true, force: true, maxRetries: 10, retryDelay: 200 })

async function read(path) {
  return readFile(path, 'utf8').catch(() => '')
}

function signal(target, name) {
  try {
    return process.kill(target, name)
  } catch {
    return false
  }
}
