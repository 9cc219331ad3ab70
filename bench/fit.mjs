// How a figure grows with another: y = a × x^b.

/** The exponent b, fitted by least squares to the logarithms; and how much of the variation it explains. */
export function fitExponent(points) {
  const logs = points.filter(({ x, y }) => x > 0 && y > 0).map(({ x, y }) => [Math.log(x), Math.log(y)])
  if (logs.length < 2) return undefined
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length
  const meanX = mean(logs.map(([x]) => x))
  const meanY = mean(logs.map(([, y]) => y))
  const xx = logs.reduce((sum, [x]) => sum + (x - meanX) ** 2, 0)
  const xy = logs.reduce((sum, [x, y]) => sum + (x - meanX) * (y - meanY), 0)
  const yy = logs.reduce((sum, [, y]) => sum + (y - meanY) ** 2, 0)
  if (xx === 0) return undefined
  return { exponent: xy / xx, explained: yy === 0 ? 1 : xy ** 2 / (xx * yy) }
}
