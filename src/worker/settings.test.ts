import { expect, it } from 'vitest'
import { workerSettings } from './settings.ts'

it.each<[object, string]>([
  [{ pollMs: 5 }, 'pollMs is 5, but must be a number of milliseconds from 10 to 3600000'],
  [{ leaseMs: 30 }, 'leaseMs is 30, but must be a number of milliseconds from 250 to 86400000'],
  [{ concurrency: 0 }, 'concurrency is 0, but must be a whole number from 1 to 100000'],
  [{ batch: 1.5 }, 'batch is 1.5, but must be a whole number from 1 to '],
  [{ prefetch: 'many' }, "prefetch is 'many', but must be a whole number from 0 to 100000"],
  [
    { settleDelayMs: Number.NaN },
    'settleDelayMs is NaN, but must be a number of milliseconds from 0 to 1000',
  ],
  [{ paused: 'yes' }, "paused is 'yes', but must be true or false"],
  [{ leasMs: 5_000 }, 'unknown setting leasMs (did you mean leaseMs?)'],
  [{ concurrency: 100_000, prefetch: 100_000 }, 'together must be at most '],
])(
  'a setting that cannot work is refused with its name, its value and what it must be: %j',
  (given, text) => {
    // As it would come from plain JavaScript, or from the table of settings.
    expect(() => workerSettings(given)).toThrow(
      expect.objectContaining({
        code: 'SETTING_INVALID',
        message: expect.stringContaining(`The settings cannot work: `),
      }),
    )
    expect(() => workerSettings(given)).toThrow(text)
    expect(() => workerSettings(given)).not.toThrow(/expected|received|Invalid input|Too (?:small|big)/)
  },
)

it('all settings that cannot work are named at once', () => {
  expect(() => workerSettings({ concurrency: 0, pollMs: 1, batch: 0 })).toThrow(
    /concurrency is 0.*; batch is 0.*; pollMs is 1/,
  )
})
