// What was measured, as a table for people and as a record.

/** One line of the table, from the readings of a side in each round. */
export function summarise(sides, readings) {
  const rate = (reading) => (reading === undefined ? undefined : (reading.rows / reading.ms) * 1_000)
  return sides.map(({ name, label, settings, comparedWith }) => {
    const own = readings.get(name) ?? []
    const other = readings.get(comparedWith) ?? []
    // Neighbours in time share the state of the machine, so a ratio is taken within each round.
    const ratios = own
      .map((reading, round) => rate(other[round]) / rate(reading))
      .filter((ratio) => Number.isFinite(ratio))
    return {
      name,
      label,
      settings,
      comparedWith,
      rates: own.map(rate),
      median: median(own.map(rate)),
      /** How many times as fast as this side the one it is compared with is. */
      ratio: median(ratios),
      readings: own,
    }
  })
}

export function median(values) {
  const known = values.filter((value) => value !== undefined).sort((a, b) => a - b)
  if (known.length === 0) return undefined
  const middle = Math.floor(known.length / 2)
  return known.length % 2 === 1 ? known[middle] : (known[middle - 1] + known[middle]) / 2
}

const thousands = (value) => (value === undefined ? 'failed' : `${(value / 1_000).toFixed(1)}k`)

export function table(lines) {
  const head = [
    'system',
    'settings',
    'rows/s in each round',
    'median',
    'leasehold is',
    'CPU µs a row: Node, server',
  ]
  const body = lines.map(({ label, settings, rates, median, ratio, name, comparedWith, readings }) => [
    label,
    settings,
    rates.map(thousands).join('  '),
    rates.length === 0 ? 'not run' : thousands(median),
    said({ name, comparedWith, ratio }),
    cpu(readings),
  ])
  const widths = head.map((title, column) =>
    Math.max(title.length, ...body.map((cells) => cells[column].length)),
  )
  const line = (cells) =>
    cells
      .map((cell, column) => cell.padEnd(widths[column]))
      .join('   ')
      .trimEnd()
  return [line(head), line(widths.map((width) => '-'.repeat(width))), ...body.map(line)].join('\n')
}

/** A peer is compared with leasehold; leasehold under a burden with itself without it. */
function said({ name, comparedWith, ratio }) {
  if (ratio === undefined || name === comparedWith) return ''
  if (name.startsWith('leasehold')) return `${(1 / ratio).toFixed(2)} of itself`
  return `${ratio.toFixed(2)} × as fast`
}

function cpu(readings) {
  const known = readings.filter((reading) => reading !== undefined)
  const each = (field) => median(known.map((reading) => (reading[field] * 1_000) / reading.rows))
  const [node, server] = [each('nodeCpuMs'), each('serverCpuMs')]
  if (node === undefined) return ''
  return `${node.toFixed(1)}, ${Number.isFinite(server) ? server.toFixed(1) : 'unknown'}`
}
