import type { Reporter, TestModule } from 'vitest/node'

const SHOWN_FILES = 10

/** Prints the slowest test files at the end of a run, so that a file that has become slow is noticed. */
export class SlowestFiles implements Reporter {
  onTestRunEnd(modules: readonly TestModule[]): void {
    const files = modules.map((module) => {
      const { collectDuration, duration } = module.diagnostic()
      return { path: module.relativeModuleId, seconds: (collectDuration + duration) / 1_000 }
    })
    // Someone who runs a few files sees their times anyway.
    if (files.length <= SHOWN_FILES) return
    const slowest = files.toSorted((a, b) => b.seconds - a.seconds).slice(0, SHOWN_FILES)
    const total = files.reduce((sum, { seconds }) => sum + seconds, 0)
    const lines = slowest.map(({ path, seconds }) => `${seconds.toFixed(1).padStart(8)} s  ${path}`)
    const heading = `The ${SHOWN_FILES} slowest of ${files.length} files (all files: ${total.toFixed(0)} s):`
    process.stdout.write(`\n${heading}\n${lines.join('\n')}\n`)
  }
}
