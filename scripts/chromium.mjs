// Chromium for scripts that look at the dashboard: the one of the system, driven by playwright-core.
import { access, constants } from 'node:fs/promises'
import { delimiter, join } from 'node:path'
import { chromium } from 'playwright-core'

const NAMES = ['chromium', 'chromium-browser', 'google-chrome']

/** Starts the browser. It asks nobody for updates, and needs no display. */
export async function launchChromium() {
  const executablePath = await findChromium()
  if (executablePath === undefined)
    throw new Error(`There is no ${NAMES.join(', ')} in the PATH. On Debian: apt-get install chromium`)
  return chromium.launch({
    executablePath,
    args: [
      '--no-sandbox',
      '--disable-gpu',
      '--disable-quic',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
    ],
  })
}

async function findChromium() {
  for (const directory of (process.env.PATH ?? '').split(delimiter))
    for (const name of NAMES) {
      const path = join(directory, name)
      const isThere = await access(path, constants.X_OK).then(
        () => true,
        () => false,
      )
      if (isThere) return path
    }
  return undefined
}
