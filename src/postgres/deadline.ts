// Import from `src/timeout.ts`. This file only keeps the old path working until its last importer is switched.
export { deadline, within } from '../timeout.ts'
