/**
 * What the command line runs with. Flags over environment over `leasehold.config.{js,mjs,ts}` over defaults, and one
 * schema for all of them. A refusal names the setting, where it came from, its value and the rule, for every problem
 * at once, and never shows a password.
 */
export { withoutPassword } from './database-url.ts'
export { loadSettings, type LoadedSettings, type Settings, type Source, type Surroundings } from './load.ts'
export { DESCRIPTIONS, flagOf, LOG_LEVELS, type SettingName, TIMING_NAMES, variableOf } from './schema.ts'
export { REAPER } from './work-declarations.ts'
