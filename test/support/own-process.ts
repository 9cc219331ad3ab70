/**
 * The test files that get a process of their own. All others share a few processes, one file after the other, because a
 * new process with its imports costs 0.3 to 1 s of processor time. A file belongs here if it leaves something behind that
 * the next file would notice, or if it would notice what other files have left.
 */
export const OWN_PROCESS = [
  // They register themselves with the API of OpenTelemetry, which is global.
  'src/messages/trace.test.ts',
  'src/observe/opentelemetry-sdk.test.ts',
  'src/stringifiable.test.ts',
  'src/webhooks/send/send-writers.test.ts',
  // It replaces a module.
  'src/server/api/live-readings.test.ts',
  // It listens to the warnings of the process.
  'src/worker/events.test.ts',
]
