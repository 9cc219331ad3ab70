/** Charts: lines over time by uPlot, and sparklines. */
import type { ComponentChildren, JSX } from 'preact'
import { useEffect, useId, useRef } from 'preact/hooks'
import uPlot from 'uplot'
import { formatExact } from '../format.ts'

export interface Line {
  readonly label: string
  /** A colour of the style sheet: `--line-1`. */
  readonly color: string
  readonly values: readonly (number | null)[]
}

const HEIGHT = 180

/** Lines over time. `times` are milliseconds; null is a gap. */
export function Chart({
  title,
  times,
  lines,
  format,
  children,
}: {
  readonly title: string
  readonly times: readonly number[]
  readonly lines: readonly Line[]
  readonly format: (value: number) => string
  /** Controls of the chart. */
  readonly children?: ComponentChildren
}): JSX.Element {
  const element = useRef<HTMLDivElement>(null)
  const chart = useRef<uPlot | undefined>(undefined)
  const heading = useId()
  const names = lines.map(({ label }) => label).join()

  useEffect(() => {
    const target = element.current
    if (target === null) return undefined
    const probe = target.appendChild(document.createElement('span'))
    /** A canvas knows neither names of the style sheet nor themes. */
    const color = (name: string): string => {
      probe.style.color = `var(${name})`
      return getComputedStyle(probe).color
    }
    // Functions, so that drawing again takes the colours of another theme.
    const axis = {
      stroke: () => color('--text-2'),
      grid: { stroke: () => color('--border'), width: 1 },
      ticks: { show: false },
      font: `11px ${getComputedStyle(target).fontFamily}`,
    }
    const plot = new uPlot(
      {
        width: target.clientWidth,
        height: HEIGHT,
        legend: { show: false },
        cursor: { y: false },
        scales: { y: { range: (_plot, _min, max) => [0, Math.max(max * 1.1, 4)] } },
        axes: [
          { ...axis, space: 70, size: 26, values: (_plot, splits) => clockTimes(splits) },
          { ...axis, size: 58, values: (_plot, splits) => splits.map((split) => format(split)) },
        ],
        series: [
          {},
          ...lines.map(({ label, color: name }) => ({
            label,
            stroke: () => color(name),
            width: 1.6,
            // A value between two gaps has no line.
            points: {
              size: 5,
              show: (_plot: uPlot, _line: number, first: number, last: number) => last - first < 30,
            },
            spanGaps: false,
          })),
        ],
      },
      [[], ...lines.map(() => [])],
      target,
    )
    chart.current = plot
    const resized = new ResizeObserver(() => plot.setSize({ width: target.clientWidth, height: HEIGHT }))
    resized.observe(target)
    const redraw = new MutationObserver(() => plot.redraw(false))
    redraw.observe(document.documentElement, { attributeFilter: ['data-theme'] })
    const scheme = matchMedia('(prefers-color-scheme: dark)')
    const follow = (): void => plot.redraw(false)
    scheme.addEventListener('change', follow)
    return () => {
      resized.disconnect()
      redraw.disconnect()
      scheme.removeEventListener('change', follow)
      plot.destroy()
      probe.remove()
      chart.current = undefined
    }
  }, [names])

  useEffect(() => {
    chart.current?.setData([times.map((time) => time / 1_000), ...lines.map(({ values }) => [...values])])
  }, [times, lines])

  return (
    <section class="chart" aria-labelledby={heading}>
      <header>
        <h3 id={heading}>{title}</h3>
        <ul class="legend">
          {lines.map(({ label, color, values }) => {
            const last = values.findLast((value) => value !== null)
            return (
              <li key={label}>
                <span class="swatch" style={{ background: `var(${color})` }} /> {label}{' '}
                <b class="number">{last === undefined || last === null ? '–' : format(last)}</b>
              </li>
            )
          })}
        </ul>
        {children}
      </header>
      <div ref={element} class="plot" role="img" aria-label={`${title}, as lines over time`} />
    </section>
  )
}

/** Seconds are shown only where the times are closer together than a minute. */
function clockTimes(seconds: readonly number[]): string[] {
  const isClose = (seconds[1] ?? 0) - (seconds[0] ?? 0) < 60
  const second = isClose ? ('2-digit' as const) : undefined
  const format = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second })
  return seconds.map((each) => format.format(each * 1_000))
}

export interface SparklineBar {
  readonly at: string
  readonly good: number
  readonly bad: number
}

/** Small bars, one for each interval: what went well, and above it what did not. */
export function Sparkline({
  bars,
  label,
}: {
  readonly bars: readonly SparklineBar[]
  readonly label: string
}): JSX.Element {
  const highest = Math.max(1, ...bars.map(({ good, bad }) => good + bad))
  const width = 100 / Math.max(1, bars.length)
  const summary = `${label}: ${total(bars, 'good')} good, ${total(bars, 'bad')} bad`
  return (
    <svg class="sparkline" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label={summary}>
      <title>{summary}</title>
      {bars.map(({ at, good, bad }, index) => {
        const goodHeight = (good / highest) * 22
        const badHeight = bad === 0 ? 0 : Math.max(2, (bad / highest) * 22)
        return (
          <g key={at}>
            <title>{`${formatExact(at)}: ${good} good, ${bad} bad`}</title>
            <rect class="none" x={index * width} y={23} width={width * 0.8} height={1} />
            <rect
              class="good"
              x={index * width}
              y={24 - goodHeight}
              width={width * 0.8}
              height={goodHeight}
            />
            <rect
              class="bad"
              x={index * width}
              y={24 - goodHeight - badHeight}
              width={width * 0.8}
              height={badHeight}
            />
          </g>
        )
      })}
    </svg>
  )
}

function total(bars: readonly SparklineBar[], of: 'good' | 'bad'): number {
  return bars.reduce((sum, bar) => sum + bar[of], 0)
}

/** How far something is. */
export function Progress({
  done,
  total: all,
  failed = 0,
  label,
}: {
  readonly done: number
  readonly total: number
  readonly failed?: number
  readonly label: string
}): JSX.Element {
  const share = (part: number): string => `${all === 0 ? 0 : Math.min(100, (part / all) * 100)}%`
  return (
    <div
      class="progress"
      role="progressbar"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={all}
      aria-valuenow={done + failed}
    >
      <span class="good" style={{ width: share(done) }} />
      <span class="bad" style={{ width: share(failed) }} />
    </div>
  )
}
