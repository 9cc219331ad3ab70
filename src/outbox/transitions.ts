/** The life of an event, as data. The database has the same table in a trigger, and a test compares the two. */
export const STATUSES = ['PENDING', 'CLAIMED', 'PUBLISHED', 'DEAD'] as const

export type Status = (typeof STATUSES)[number]

/** What brings an event from one state to another; `undefined` is illegal (LIFE-02). */
export const TRANSITIONS: Readonly<Record<Status, Readonly<Record<Status, string | undefined>>>> = {
  PENDING: { PENDING: undefined, CLAIMED: 'claim', PUBLISHED: undefined, DEAD: undefined },
  CLAIMED: { PENDING: 'retry, release or reap', CLAIMED: undefined, PUBLISHED: 'publish', DEAD: 'give up' },
  PUBLISHED: { PENDING: 'replay', CLAIMED: undefined, PUBLISHED: undefined, DEAD: undefined },
  DEAD: { PENDING: 'replay', CLAIMED: undefined, PUBLISHED: undefined, DEAD: undefined },
}
