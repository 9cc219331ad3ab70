import { expect, it } from 'vitest'
import { createLog } from '../observe/index.ts'
import { abandonParts, stopParts, type Part } from './parts.ts'

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

it('parts are stopped in reverse, one after the other', async () => {
  const stopped: string[] = []
  const { log } = capture()
  const parts = ['database', 'pool', 'HTTP'].map((name) => part(name, stopped))
  expect(await stopParts(parts, log)).toBe(true)
  expect(stopped).toEqual(['HTTP', 'pool', 'database'])
})

it('a part that fails or never stops does not keep the others from being stopped', async () => {
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

it('a part that has stopped and says that it left something behind is not clean, and no failure', async () => {
  const { log, lines } = capture()
  const left: Part = { name: 'workers', stopWithinMs: 20, stop: async () => ({ clean: false }) }
  const done: Part = { name: 'pool', stopWithinMs: 20, stop: async () => ({ clean: true }) }
  expect(await stopParts([done, left], log)).toBe(false)
  expect(await stopParts([done], log)).toBe(true)
  expect(lines).toEqual([])
})

it('abandoning tries every part, also after one that throws', () => {
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
