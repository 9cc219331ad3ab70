export default {
  name: 'cut',
  title: 'connections are delayed and reset at any point of a statement',
  times: 15,
  async step(context) {
    const { proxy, id } = context.anyWorker()
    proxy.delay(context.random.between(0, 80))
    await context.delay(context.random.between(50, 400))
    const connections = proxy.cut()
    proxy.delay(0)
    if (connections > 0) context.fire('reset', { worker: id, connections })
  },
}
