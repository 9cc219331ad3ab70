#!/usr/bin/env node
import { once } from 'node:events'
import { userInfo } from 'node:os'
import { createInterface } from 'node:readline/promises'
import { text } from 'node:stream/consumers'
import { runProgram } from './program.ts'
import { keepHeapSmall } from './small-heap.ts'

/** Long enough for what is being written; whatever else keeps the process alive by then does so by mistake. */
const LINGER_MS = 2_000

keepHeapSmall()

// A reader that went away (`leasehold up | head`, a closed terminal) must not end us before our parts are stopped.
for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {})

async function ask(question: string): Promise<string> {
  const line = createInterface({ input: process.stdin, output: process.stderr })
  // Ctrl-C and the end of the input close it without an answer: the question then waits for ever, or rejects.
  const closed = once(line, 'close').then(() => '')
  try {
    return await Promise.race([closed, line.question(question).catch(() => '')])
  } finally {
    line.close()
  }
}

process.exitCode = await runProgram(process.argv.slice(2), {
  environment: process.env,
  workingDirectory: process.cwd(),
  isTerminal: process.stderr.isTTY,
  out: (text) => void process.stdout.write(text),
  err: (text) => void process.stderr.write(text),
  width: process.stdout.isTTY ? process.stdout.columns : undefined,
  input: async () => text(process.stdin),
  ask: process.stdin.isTTY && process.stderr.isTTY ? ask : undefined,
  account: () => userInfo().username,
})
setTimeout(() => process.exit(), LINGER_MS).unref()
