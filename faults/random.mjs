// Every random choice of a run comes from its seed, so that a run can be repeated.

/** A generator for one purpose. Generators of the same seed and different names are independent of each other. */
export function randomFor(seed, name) {
  let state = hash(`${seed}/${name}`)
  /** mulberry32: 32 bits of state are enough to choose between a few things. */
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = state
    mixed = Math.imul(mixed ^ (mixed >>> 15), mixed | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296
  }
  return {
    next,
    /** A whole number from `from` to `to`, both included. */
    between: (from, to) => from + Math.floor(next() * (to - from + 1)),
    chance: (share) => next() < share,
    pick: (list) => list[Math.floor(next() * list.length)],
  }
}

/** FNV-1a. */
function hash(text) {
  let value = 0x811c9dc5
  for (const byte of Buffer.from(text)) value = Math.imul(value ^ byte, 0x01000193) >>> 0
  return value
}
