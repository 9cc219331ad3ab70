/** Durations, moments and counts as a person reads them. */

/** `4 s`, `12 min`, `3 h`, `2 d`. */
export function duration(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1_000))
  if (seconds < 120) return `${seconds} s`
  if (seconds < 7_200) return `${Math.round(seconds / 60)} min`
  return seconds < 172_800 ? `${Math.round(seconds / 3_600)} h` : `${Math.round(seconds / 86_400)} d`
}

/** `3 min ago`, `in 20 s`. */
export function relative(moment: Date, now: Date): string {
  const ms = moment.getTime() - now.getTime()
  return ms > 500 ? `in ${duration(ms)}` : `${duration(-ms)} ago`
}

/** `1 event`, `12,000 events`. */
export function counted(count: number, one: string, many = `${one}s`): string {
  return `${grouped(count)} ${count === 1 ? one : many}`
}

/** `12,000`. */
export function grouped(count: number): string {
  return count.toLocaleString('en-US')
}
