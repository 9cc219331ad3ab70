// Compiles the application with decorators, as `nest build` does, and starts it. Needs DATABASE_URL.
import { execFileSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'

const compiler = fileURLToPath(new URL('bin/tsc', import.meta.resolve('typescript/package.json')))
const project = fileURLToPath(new URL('tsconfig.build.json', import.meta.url))
execFileSync(process.execPath, [compiler, '-p', project], { stdio: 'inherit' })
await import('./dist/main.js')
