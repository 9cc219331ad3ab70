// Commands are loaded when they are needed: a report does not need the packages of the bench.
const COMMANDS = {
  all: async () => {
    const { all, USAGE } = await import('./all.mjs')
    return { run: all, usage: USAGE }
  },
  report: async () => {
    const { report, USAGE } = await import('./report/report.mjs')
    return { run: report, usage: USAGE }
  },
  drain: async () => {
    const { drain, USAGE } = await import('./drain.mjs')
    return { run: drain, usage: USAGE }
  },
  survival: async () => {
    const { survival, USAGE } = await import('./survival/survival.mjs')
    return { run: survival, usage: USAGE }
  },
}

const [command, ...args] = process.argv.slice(2)

try {
  const load = COMMANDS[command]
  if (load !== undefined) await (await load()).run(args)
  else {
    const known = await Promise.all(Object.values(COMMANDS).map(async (one) => (await one()).usage))
    process.stdout.write(known.join('\n'))
    if (command !== undefined && command !== '--help') {
      process.stderr.write(`there is no command ${command}, only ${Object.keys(COMMANDS).join(', ')}\n`)
      process.exitCode = 1
    }
  }
} catch (error) {
  process.stderr.write(`${error.message}\n`)
  process.exitCode = 1
}
