/** The states of an event. A trigger in the database enforces the same table, and a test compares the two. */
export const STATUSES = ['PENDING', 'CLAIMED', 'PUBLISHED', 'DEAD'] as const

export type Status = (typeof STATUSES)[number]

/** What leads from one state to another; `undefined` is illegal (LIFE-02). */
export const TRANSITIONS: Readonly<Record<Status, Readonly<Record<Status, string | undefined>>>> = {
  PENDING: { PENDING: undefined, CLAIMED: 'claim', PUBLISHED: undefined, DEAD: undefined },
  CLAIMED: { PENDING: 'retry, release or reap', CLAIMED: undefined, PUBLISHED: 'publish', DEAD: 'give up' },
  PUBLISHED: { PENDING: 'replay', CLAIMED: undefined, PUBLISHED: undefined, DEAD: undefined },
  DEAD: { PENDING: 'replay', CLAIMED: undefined, PUBLISHED: undefined, DEAD: undefined },
}
