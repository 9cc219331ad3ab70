const LEASES = [2.2, 3.6]

export default {
  name: 'blocked-loop',
  title: 'a handler blocks the event loop of its process, for two leases and for more than three',
  times: 2,
  async step(context) {
    for (const leases of LEASES) {
      const blocking = context.watch('blocking')
      const blockMs = leases * context.timing.leaseMs
      await context.enqueue([{ type: 'fault.event', payload: { behaviour: 'blocks', blockMs } }])
      await blocking.seen()
      context.fire('blocked event loop', { blockMs })
      await context.delay(blockMs)
    }
  },
}
