export default {
  name: 'out-of-order',
  title: 'transactions that overlap on a key commit in another order than they wrote, or roll back',
  produces: { producers: 6, keys: 3, lateMs: 1_500, rollbacks: 0.4 },
  async run(context) {
    await context.delay(context.short ? 4_000 : 12_000)
    const ends = context.lines('committed').map(({ tx }) => tx)
    const writes = new Map()
    for (const { key, tx } of context.lines('written'))
      if (key) writes.set(key, [...(writes.get(key) ?? []), tx])
    let inversions = 0
    for (const list of writes.values()) {
      const order = list.map((tx) => ends.indexOf(tx)).filter((end) => end !== -1)
      inversions += order.filter((end, i) => i > 0 && end < order[i - 1]).length
    }
    for (let count = 0; count < inversions; count += 1) context.fire('a later row was committed first')
  },
}
