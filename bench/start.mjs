import { drain, USAGE } from './drain.mjs'

const [command, ...args] = process.argv.slice(2)

try {
  if (command === 'drain') await drain(args)
  else process.stdout.write(USAGE)
} catch (error) {
  process.stderr.write(`${error.message}\n`)
  process.exitCode = 1
}
