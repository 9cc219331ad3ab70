#!/usr/bin/env node
import { runProgram } from './program.ts'
import { keepHeapSmall } from './small-heap.ts'

/** Long enough for what is being written; whatever else keeps the process alive by then does so by mistake. */
const LINGER_MS = 2_000

keepHeapSmall()

// A reader that went away (`leasehold up | head`, a closed terminal) must not end us before our parts are stopped.
for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {})

process.exitCode = await runProgram(process.argv.slice(2), {
  environment: process.env,
  workingDirectory: process.cwd(),
  isTerminal: process.stderr.isTTY,
  out: (text) => void process.stdout.write(text),
  err: (text) => void process.stderr.write(text),
})
setTimeout(() => process.exit(), LINGER_MS).unref()
