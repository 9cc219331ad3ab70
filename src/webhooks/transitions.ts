/** The states of a delivery. A trigger in the database has the same table, and a test compares the two. */
export const DELIVERY_STATUSES = ['pending', 'delivered', 'failed'] as const

export type DeliveryStatus = (typeof DELIVERY_STATUSES)[number]

/** What changes a delivery from one state to another; `undefined` is illegal. A retry stays pending. */
export const TRANSITIONS: Readonly<
  Record<DeliveryStatus, Readonly<Record<DeliveryStatus, string | undefined>>>
> = {
  pending: { pending: 'claim, retry or release', delivered: 'deliver', failed: 'fail or cancel' },
  delivered: { pending: 'replay', delivered: undefined, failed: undefined },
  failed: { pending: 'replay', delivered: undefined, failed: undefined },
}
