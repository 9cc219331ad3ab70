import { describe, expect, it } from 'vitest'

import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { type Dialled, dialledConnection, loadClient } from './connection.ts'

useQuietProcess()

function dialling() {
  const log: string[] = []
  let count = 0
  const open = new Set<number>()
  const dial = async (): Promise<Dialled<number>> => {
    count += 1
    const number = count
    log.push(`dial ${number}`)
    await new Promise((resolve) => setImmediate(resolve))
    open.add(number)
    return {
      client: number,
      isOpen: () => open.has(number),
      close: async () => {
        log.push(`close ${number}`)
        open.delete(number)
      },
      destroy: () => {
        log.push(`destroy ${number}`)
        open.delete(number)
      },
    }
  }
  return { dial, log, lose: (number: number) => open.delete(number) }
}

describe('a connection', () => {
  it('is opened on first use, once for all callers, and anew after a loss', async () => {
    const { dial, log, lose } = dialling()
    const connection = dialledConnection(dial, 1_000)
    expect(log).toEqual([])
    expect(await Promise.all([connection.get(), connection.get(), connection.get()])).toEqual([1, 1, 1])
    lose(1)
    expect(await connection.get()).toBe(2)
    connection.drop()
    expect(await connection.get()).toBe(3)
    await connection.close()
    expect(log).toEqual(['dial 1', 'destroy 1', 'dial 2', 'destroy 2', 'dial 3', 'close 3'])
  })

  it('that cannot be opened rejects with the reason, and the next call connects anew', async () => {
    const { dial } = dialling()
    let refused = false
    const connection = dialledConnection(async () => {
      if (!refused) {
        refused = true
        throw new Error('refused')
      }
      return dial()
    }, 1_000)
    await expect(connection.get()).rejects.toThrow('refused')
    expect(await connection.get()).toBe(1)
  })

  it('that opens after the timeout is closed and not used', async () => {
    const { dial, log } = dialling()
    let release = () => {}
    const held = new Promise<void>((resolve) => (release = resolve))
    let late: Promise<Dialled<number>> | undefined
    const connection = dialledConnection(async () => {
      late = held.then(dial)
      return late
    }, 20)
    await expect(connection.get()).rejects.toThrow('within 20 ms')
    release()
    await late
    await new Promise((resolve) => setImmediate(resolve))
    expect(log).toEqual(['dial 1', 'destroy 1'])
  })

  it('is not opened after close(), and one that is being opened is closed', async () => {
    const { dial, log } = dialling()
    const connection = dialledConnection(dial, 1_000)
    const asked = connection.get()
    await connection.close()
    await expect(asked).rejects.toThrow('closed')
    await expect(connection.get()).rejects.toThrow('closed')
    await new Promise((resolve) => setImmediate(resolve))
    expect(log).toEqual(['dial 1', 'destroy 1'])
  })
})

describe('a client that is not installed', () => {
  it('is an error that names the packages to install', async () => {
    const name = 'a-client-that-nobody-has'
    const loading = loadClient('nats', name, async (): Promise<unknown> => import(name))
    await expect(loading).rejects.toMatchObject({
      code: 'PUBLISHER_MISSING',
      message: expect.stringContaining(`npm install ${name}`),
    })
  })

  it('that fails to load for another reason is not reported as missing', async () => {
    const loading = loadClient('nats', 'x', async () => {
      throw new SyntaxError('Unexpected token')
    })
    await expect(loading).rejects.toThrow('Unexpected token')
  })
})
