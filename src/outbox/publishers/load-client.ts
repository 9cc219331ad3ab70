import { LeaseholdError } from '../../errors.ts'

const NOT_FOUND = new Set(['ERR_MODULE_NOT_FOUND', 'MODULE_NOT_FOUND'])

/** Clients of brokers are optional peers: whoever does not publish to a broker does not install its client. */
export async function loadClient<Client>(
  publisher: string,
  packages: string,
  load: () => Promise<Client>,
): Promise<Client> {
  try {
    return await load()
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? String(error.code) : ''
    if (!NOT_FOUND.has(code)) throw error
    throw new LeaseholdError(
      'PUBLISHER_MISSING',
      `The ${publisher} publisher needs ${packages}, which is not installed.`,
      { remedy: `Run: npm install ${packages}`, cause: error },
    )
  }
}
