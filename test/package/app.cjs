'use strict'

const { run } = require('./scenario.cjs')

run({
  core: require('leasehold'),
  embedded: require('leasehold/embedded'),
  outbox: require('leasehold/outbox'),
  handlers: require('leasehold/publishers/handlers'),
  server: require('leasehold/server'),
}).catch((error) => {
  process.stderr.write(`${error.stack}\n`)
  process.exitCode = 1
})
