export default {
  name: 'postmaster',
  title: 'PostgreSQL is killed with SIGKILL, recovers, and starts again',
  times: 4,
  async step(context) {
    // In a soak another step may have killed it at this moment, and starts it.
    if (context.server.hasEnded) return
    await context.server.kill()
    context.fire('SIGKILL of the postmaster')
    await context.delay(context.random.between(0, 1_500))
    await context.server.start()
    await context.accepted(20)
  },
}
