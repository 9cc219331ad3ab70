/**
 * The safe network side of webhooks: requests to URLs that strangers chose. What is judged, and when, is written
 * down in README.md beside this file.
 */
export { isPublicUnicast, reasonNotPublic } from './address.ts'
export type { TlsOptions } from './connector.ts'
export type { FailureCode } from './failure.ts'
export { usableHeaders } from './headers.ts'
export { DEFAULT_LIMITS, type PostLimits, usableLimits } from './limits.ts'
export type { Dial, Dialled, Resolve } from './open.ts'
export {
  LOOPBACK,
  type NetworkPolicy,
  networkPolicy,
  type NetworkPolicyOptions,
  type Protocol,
  reasonRefused,
} from './policy.ts'
export {
  createPoster,
  type Message,
  type Poster,
  type PosterOptions,
  type PostOptions,
  type Reply,
} from './post.ts'
export { createResolver, type ResolverOptions } from './resolve.ts'
export { judgeTarget, type TargetOptions, type TargetVerdict, usableTarget } from './target.ts'
