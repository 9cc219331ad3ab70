/**
 * `leasehold/testing`: what a user needs to put a lease table of their own to the test.
 * The suite only needs a database it may delete rows in; it works with any test runner.
 */
export { leaseConformance, type ConformanceCase } from './conformance.ts'
export type { LeaseSubject } from './subject.ts'
