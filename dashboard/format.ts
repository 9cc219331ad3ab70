/** Numbers, times and sizes as people read them. */

const whole = new Intl.NumberFormat('en-GB')
const short = new Intl.NumberFormat('en-GB', { notation: 'compact', maximumFractionDigits: 1 })

export function formatCount(count: number): string {
  return whole.format(count)
}

/** 1.2M instead of 1,234,567. */
export function formatShort(count: number): string {
  return Math.abs(count) < 10_000 ? whole.format(count) : short.format(count)
}

export function formatRate(perSecond: number): string {
  if (perSecond === 0) return '0/s'
  return perSecond < 10 ? `${perSecond.toFixed(1)}/s` : `${formatShort(Math.round(perSecond))}/s`
}

const UNITS = [
  ['d', 86_400_000],
  ['h', 3_600_000],
  ['min', 60_000],
  ['s', 1_000],
] as const

/** 90,000 → `1 min 30 s`. Two units at most; the second only where it says something. */
export function formatDuration(ms: number): string {
  const rest = Math.abs(ms)
  if (rest < 1_000) return `${Math.round(rest)} ms`
  if (rest < 10_000) return `${(Math.floor(rest / 100) / 10).toFixed(1)} s`
  const index = UNITS.findIndex(([, size]) => rest >= size)
  const [unit, size] = UNITS[index] ?? ['s', 1_000]
  const count = Math.floor(rest / size)
  const smaller = UNITS[index + 1]
  if (smaller === undefined || count >= 10) return `${count} ${unit}`
  const remainder = Math.floor((rest - count * size) / smaller[1])
  return remainder === 0 ? `${count} ${unit}` : `${count} ${unit} ${remainder} ${smaller[0]}`
}

/** `3 min ago`, `in 12 s`. */
export function formatRelative(time: number, now: number): string {
  const ms = time - now
  if (Math.abs(ms) < 1_000) return 'now'
  const size = Math.abs(ms)
  // Tenths of seconds would flicker in a text that is drawn every second.
  const text = size < 10_000 ? `${Math.round(size / 1_000)} s` : formatDuration(size)
  return ms < 0 ? `${text} ago` : `in ${text}`
}

const exact = new Intl.DateTimeFormat('en-GB', {
  year: 'numeric',
  month: 'short',
  day: 'numeric',
  hour: '2-digit',
  minute: '2-digit',
  second: '2-digit',
  fractionalSecondDigits: 3,
  timeZoneName: 'short',
})

export function formatExact(time: string | number): string {
  return exact.format(new Date(time))
}

export function formatBytes(bytes: number): string {
  const units = ['B', 'kB', 'MB', 'GB', 'TB']
  const power = bytes === 0 ? 0 : Math.min(units.length - 1, Math.floor(Math.log(bytes) / Math.log(1024)))
  const value = bytes / 1024 ** power
  return `${value < 10 && power > 0 ? value.toFixed(1) : Math.round(value)} ${units[power] ?? 'B'}`
}
