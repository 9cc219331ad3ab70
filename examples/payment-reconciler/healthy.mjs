// What a container's health check runs: exits with 0 if the process in the same container is alive and ready.
const address = `http://127.0.0.1:${process.env.PORT || process.env.LEASEHOLD_PORT || 7400}`
try {
  for (const page of ['/livez', '/readyz']) {
    const answer = await fetch(`${address}${page}`, { signal: AbortSignal.timeout(4_000) })
    if (!answer.ok) throw new Error(`${page} answers with ${answer.status}: ${await answer.text()}`)
  }
} catch (error) {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`)
  process.exitCode = 1
}
