import { once } from 'node:events'
import { readFile, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'

/**
 * A port that is free now: that of the last run if it can be had, so that a person's address of the database and the
 * processes that share it stay good; else one the kernel chooses. The caller retries when it was taken meanwhile.
 */
export async function choosePort(rememberedIn: string): Promise<number> {
  const remembered = Number(await readFile(rememberedIn, 'utf8').catch(() => ''))
  const isPort = Number.isInteger(remembered) && remembered > 1023 && remembered < 65_536
  return ((isPort ? await portIfFree(remembered) : undefined) ?? (await portIfFree(0))) || unavailable()
}

export async function rememberPort(port: number, rememberedIn: string): Promise<void> {
  await writeFile(rememberedIn, `${port}\n`)
}

/** `undefined` when somebody has it. */
async function portIfFree(port: number): Promise<number | undefined> {
  const server = createServer()
  server.listen(port, '127.0.0.1')
  try {
    await once(server, 'listening')
  } catch {
    return undefined
  }
  const address = server.address()
  server.close()
  await once(server, 'close')
  return address === null || typeof address === 'string' ? undefined : address.port
}

function unavailable(): never {
  throw new Error('no port on 127.0.0.1 could be had')
}
