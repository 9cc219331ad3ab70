// In a module of its own, so that a relay whose memory is measured loads little else.

/** What the handlers of `processes/relay.mjs` do with an event is decided by its type. */
export const TYPES = {
  happened: 'bench.happened',
  probe: 'bench.probe',
  waiting: 'bench.waiting',
  failing: 'bench.failing',
  finished: 'bench.finished',
}
