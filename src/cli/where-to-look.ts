import type { EmbeddedServer } from '../embedded/index.ts'

export interface WhereToLook {
  readonly version: string
  readonly httpUrl: string | undefined
  /** Present when the usual port was not free. */
  readonly takenPort: number | undefined
  readonly databaseUrl: string
  /** Present when the database is our own. */
  readonly embedded: Pick<EmbeddedServer, 'directory' | 'origin'> | undefined
  readonly worker: string | undefined
  readonly roles: readonly string[]
}

const ORIGINS: Readonly<Record<EmbeddedServer['origin'], string>> = {
  initialised: 'created now',
  started: 'found from an earlier run',
  adopted: 'found; its server was still running and was taken over',
  shared: 'found; another process runs its server',
}

/** The block a person reads when everything is up. */
export function whereToLook(found: WhereToLook): string {
  const { version, httpUrl, takenPort, databaseUrl, embedded, worker, roles } = found
  const port = takenPort === undefined ? '' : ` (port ${takenPort} was taken)`
  const lines = [
    ['HTTP', httpUrl === undefined ? 'off' : `${httpUrl}${port}`],
    ['Database', databaseUrl],
    ...(embedded === undefined ? [] : [['Data', `${embedded.directory} (${ORIGINS[embedded.origin]})`]]),
    ['Workers', roles.length === 0 ? 'none: leasehold.config declares none' : roles.join(', ')],
    ...(worker === undefined ? [] : [['Worker id', worker]]),
    ['Stop', 'Ctrl-C'],
  ]
  const body = lines.map(([name = '', text]) => `  ${name.padEnd(11)}${text}`)
  return ['', `Leasehold ${version} is up.`, '', ...body, '', ''].join('\n')
}
