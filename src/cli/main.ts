#!/usr/bin/env node
import { once } from 'node:events'
import { userInfo } from 'node:os'
import { createInterface } from 'node:readline/promises'
import { text } from 'node:stream/consumers'
import { keepHeapSmall } from '../worker/small-heap.ts'

/** Long enough to finish writing output. Anything else that still keeps the process alive does so by mistake. */
const EXIT_AFTER_MS = 2_000

// Before anything else is loaded.
keepHeapSmall()
const { runProgram } = await import('./program.ts')

// When the reader of the output closes it (`leasehold up | head`, a closed terminal), the parts must still be stopped.
for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {})

async function ask(question: string): Promise<string> {
  const prompt = createInterface({ input: process.stdin, output: process.stderr })
  // Ctrl-C and the end of the input close it without an answer; the question then never resolves, or rejects.
  const closed = once(prompt, 'close').then(() => '')
  try {
    return await Promise.race([closed, prompt.question(question).catch(() => '')])
  } finally {
    prompt.close()
  }
}

process.exitCode = await runProgram(process.argv.slice(2), {
  environment: process.env,
  workingDirectory: process.cwd(),
  isTerminal: process.stderr.isTTY,
  hasTerminal: [process.stdin, process.stdout, process.stderr].some(({ isTTY }) => isTTY),
  out: (text) => void process.stdout.write(text),
  err: (text) => void process.stderr.write(text),
  width: process.stdout.isTTY ? process.stdout.columns : undefined,
  input: async () => text(process.stdin),
  ask: process.stdin.isTTY && process.stderr.isTTY ? ask : undefined,
  account: () => userInfo().username,
})
setTimeout(() => process.exit(), EXIT_AFTER_MS).unref()
