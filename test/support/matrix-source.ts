import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, beforeAll } from 'vitest'

/** One request for the values of a chunk, or for a plan. */
export interface Fetched {
  readonly matrix: string
  /** `plan`, or the number of a chunk. */
  readonly what: string
  /** The id of the runner that asked. */
  readonly runner: string
}

export interface MatrixSource {
  /** Available after the hooks of the file have run. */
  readonly url: string
  readonly fetches: readonly Fetched[]
  /** How long a request for the values of a chunk takes. */
  answerMs: number
  /** The plan of each matrix. Default: no chunks. */
  readonly plans: Map<string, readonly { readonly n: number; readonly [more: string]: unknown }[]>
  /** Delays the answers to matching requests until the returned function is called, and then answers with this status. */
  hold(fits: (fetch: Fetched) => boolean): (status?: number) => void
  /** Returns the first matching request, made already or later. */
  fetched(fits: (fetch: Fetched) => boolean): Promise<Fetched>
}

/** The values of a chunk. They are always the same, and different for every chunk. */
export function valuesOf(matrix: string, n: number): number[] {
  return Array.from({ length: 1 + (n % 7) }, (_, i) => matrix.length * 100_000 + n * 10 + i)
}

/** An HTTP source for sync jobs: a server in this process that records all requests. */
export function useMatrixSource(): MatrixSource {
  const fetches: Fetched[] = []
  const holds = new Map<(fetch: Fetched) => boolean, Promise<number>>()
  const waiting = new Set<() => void>()
  const server = createServer((request, response) => void answer(request, response))
  let port = 0

  async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const [, matrix = '', what = ''] = (request.url ?? '').split('/')
    const runner = String(request.headers['x-runner'])
    const fetched = { matrix, what, runner }
    const held = [...holds].find(([fits]) => fits(fetched))?.[1]
    fetches.push(fetched)
    for (const check of waiting) check()
    const status = held === undefined ? 200 : await held
    if (what !== 'plan') await delay(source.answerMs)
    response.writeHead(status, { 'content-type': 'application/json' })
    response.end(
      JSON.stringify(what === 'plan' ? (source.plans.get(matrix) ?? []) : valuesOf(matrix, Number(what))),
    )
  }

  beforeAll(async () => {
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
    const address = server.address()
    port = typeof address === 'object' && address !== null ? address.port : 0
  })
  afterAll(async () => {
    server.closeAllConnections()
    server.close()
    await once(server, 'close')
  })

  const source: MatrixSource = {
    get url() {
      return `http://127.0.0.1:${port}`
    },
    fetches,
    answerMs: 0,
    plans: new Map(),
    hold(fits) {
      let release: (status: number) => void = () => undefined
      holds.set(
        fits,
        new Promise<number>((resolve) => {
          release = resolve
        }),
      )
      return (status = 200) => {
        holds.delete(fits)
        release(status)
      }
    },
    fetched: async (fits) =>
      new Promise((resolve) => {
        const check = (): void => {
          const found = fetches.find((fetched) => fits(fetched))
          if (found === undefined) return
          waiting.delete(check)
          resolve(found)
        }
        waiting.add(check)
        check()
      }),
  }
  return source
}
