import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { findFaketime, skipWithoutFaketime } from '../faketime.mjs'

let directory

export default {
  name: 'database-clock',
  title: 'the clock of the database jumps forward by an hour',
  skip: skipWithoutFaketime,
  worker: { publishMs: [20, 400] },
  produces: { pauseMs: 100, keys: 40 },
  async server() {
    directory = await mkdtemp(join(tmpdir(), 'leasehold-clock-'))
    await chmod(directory, 0o755)
    await writeFile(join(directory, 'clock'), '+0s\n')
    const env = {
      LD_PRELOAD: await findFaketime(),
      FAKETIME_TIMESTAMP_FILE: join(directory, 'clock'),
      FAKETIME_NO_CACHE: '1',
    }
    return { env }
  },
  async run(context) {
    const now = async () =>
      context.withClient(async (client) => (await client.query('select now() as now')).rows[0].now.getTime())
    await writeFile(join(directory, 'clock'), '+3600s\n')
    if ((await now()) - Date.now() > 3_000_000) context.fire('+1 h')
    await context.delay(context.timing.leaseMs)
    await context.accepted(50)
  },
  async cleanUp() {
    await rm(directory, { recursive: true, force: true })
  },
}
