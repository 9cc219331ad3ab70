import { startProxy } from '../proxy.mjs'

/** Of these statements every tenth is executed, and its answer never arrives. */
const SHARE = 0.1

export default {
  name: 'lost-commit',
  title: 'a COMMIT, a claim or a settlement is executed, and its acknowledgement is lost',
  async prepare(context) {
    context.producerProxy = await startProxy(context.url)
    context.producerUrl = context.producerProxy.url
    context.onEnd(async () => context.producerProxy.close())
  },
  times: 8,
  async step(context) {
    const { producerProxy, random } = context
    const rule = (statement) => ({
      statement,
      when: () => random.chance(SHARE),
      onDrop: (text) => context.fire('acknowledgement dropped', { statement: text.slice(0, 40) }),
    })
    producerProxy?.dropAnswers(rule(/^commit/i))
    for (const { proxy } of context.workers) proxy.dropAnswers(rule(/leasehold:(claim|settle)/))
    await context.delay(random.between(300, 900))
    producerProxy?.dropAnswers(undefined)
    for (const { proxy } of context.workers) proxy.dropAnswers(undefined)
    await context.accepted(5)
  },
}
