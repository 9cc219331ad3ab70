import { expect, it } from 'vitest'
import { abandonParts, type Part, stopParts } from './process.ts'
import { createLog } from '../observe/log.ts'

function capture() {
  const lines: string[] = []
  return { lines, log: createLog({ level: 'error', format: 'json', write: (text) => void lines.push(text) }) }
}

function part(name: string, stopped: string[], stop?: () => Promise<void>): Part {
  return {
    name,
    stopWithinMs: 20,
    async stop() {
      stopped.push(name)
      await stop?.()
    },
    abandon() {
      stopped.push(`${name} at once`)
    },
  }
}

it('parts are stopped in reverse order, one after the other', async () => {
  const stopped: string[] = []
  const { log } = capture()
  const parts = ['database', 'pool', 'HTTP'].map((name) => part(name, stopped))
  expect(await stopParts(parts, log)).toBe(true)
  expect(stopped).toEqual(['HTTP', 'pool', 'database'])
})

it('a part that fails or hangs does not keep the others from being stopped', async () => {
  const stopped: string[] = []
  const { log, lines } = capture()
  const parts = [
    part('database', stopped),
    part('stuck', stopped, async () => new Promise(() => {})),
    part('broken', stopped, async () => Promise.reject(new Error('no'))),
  ]
  expect(await stopParts(parts, log)).toBe(false)
  expect(stopped).toEqual(['broken', 'stuck', 'database'])
  expect(lines.join('')).toContain('stuck did not stop within 20 ms')
})

it('a part that stopped without finishing everything is not clean, but no error is logged', async () => {
  const { log, lines } = capture()
  const unfinished: Part = { name: 'workers', stopWithinMs: 20, stop: async () => ({ clean: false }) }
  const done: Part = { name: 'pool', stopWithinMs: 20, stop: async () => ({ clean: true }) }
  expect(await stopParts([done, unfinished], log)).toBe(false)
  expect(await stopParts([done], log)).toBe(true)
  expect(lines).toEqual([])
})

it('every part is abandoned, even after one that throws', () => {
  const stopped: string[] = []
  const { log } = capture()
  const broken: Part = {
    ...part('broken', stopped),
    abandon() {
      throw new Error('no')
    },
  }
  abandonParts([part('database', stopped), broken], log)
  expect(stopped).toEqual(['database at once'])
})
