import { afterAll, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { sendAll } from '../../../test/support/running-dispatcher.ts'
import { door } from '../../../test/support/running-worker.ts'
import { useRuntimes } from '../../../test/support/runtimes.ts'
import { makeEndpoint } from '../../../test/support/webhook-endpoints.ts'
import { openDatabase } from '../../postgres/database.ts'
import { webhookTable } from '../../webhooks/table.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const start = useRuntimes(url)
afterAll(async () => db.close())

it('groups that have room after a time, without saying so, are claimed from with a poll', async () => {
  const endpoint = await makeEndpoint(db)
  await sendAll(db, null)
  const handled = door()
  let asked = 0
  const groups = {
    // A circuit that closes with time: nothing calls the listener of onRoom.
    open() {
      asked += 1
      return {
        groups: asked > 3 ? [{ group: endpoint, room: 1 }] : [],
        recheckInMs: Number.POSITIVE_INFINITY,
      }
    },
    claimed: () => undefined,
    ended: () => undefined,
    onRoom: () => undefined,
  }
  const handle = async (): Promise<void> => handled.open()
  await start([{ name: 'closed', table: webhookTable(), groups, handle }])
  await handled.opened
  expect(asked).toBeGreaterThan(3)
})
