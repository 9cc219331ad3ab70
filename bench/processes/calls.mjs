// The end of a process of `processes/` that answers the calls of the bench (`startProcess` in `called-process.mjs`).

/** Answers each call with what the command of its name returns, or with the error that it throws. */
export function serve(commands) {
  // The bench has ended: nobody waits for an answer.
  process.once('disconnect', () => process.exit(1))
  const answer = async ({ call, name, args }) => {
    try {
      process.send({ call, result: await commands[name](...args) })
    } catch (error) {
      process.send({ call, error: error.message ?? String(error) })
    }
  }
  process.on('message', (message) => {
    void answer(message)
  })
}

export function report(message) {
  process.send({ report: message })
}
