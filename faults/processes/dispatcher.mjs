// A dispatcher that may only send to loopback. What arrives is recorded by the receiver.
import { config, fromBuild, serve } from './recorded-process.mjs'

const { dispatcher, LOOPBACK } = await fromBuild('webhooks/index.js')
const { secretKey, schedule, circuitBreaker, settings } = config

await serve([dispatcher({ secretKey, network: { allow: LOOPBACK }, schedule, circuitBreaker, settings })])
