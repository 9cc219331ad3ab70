export default {
  name: 'half-open',
  title: 'connections that listen, or that query, stay open and deliver nothing any more',
  times: 2,
  async step(context) {
    for (const which of ['listen', 'query']) {
      const { proxy, id } = context.anyWorker()
      const connections = proxy.halfOpen(which)
      if (connections > 0) context.fire('half-open', { worker: id, which, connections })
      await context.delay(context.random.between(1_500, 3_000))
    }
  },
}
