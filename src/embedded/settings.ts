import { LeaseholdError } from '../errors.ts'

const OURS = new Set(['port', 'listen_addresses', 'unix_socket_directories', 'data_directory'])

/** Refuses what would move the server away from where its owner looks for it. */
export function checkSettings(settings: Readonly<Record<string, string>>): Readonly<Record<string, string>> {
  for (const [name, value] of Object.entries(settings)) {
    if (OURS.has(name.toLowerCase())) {
      throw new LeaseholdError(
        'SETTING_INVALID',
        `The PostgreSQL setting ${name} (${value}) is chosen by the embedded server.`,
        {
          remedy: 'Leave it out, or run a server of your own and set DATABASE_URL.',
        },
      )
    }
    if (!/^[a-z_][a-z0-9_.]*$/i.test(name)) {
      throw new LeaseholdError('SETTING_INVALID', `"${name}" (${value}) is no name of a PostgreSQL setting.`)
    }
  }
  return settings
}
