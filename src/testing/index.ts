/**
 * `leasehold/testing`: tests that a user's own lease table keeps the promises of the kernel. The suite works with any
 * test runner and needs a database in which it may delete the rows of the table.
 */
export { leaseConformance, type ConformanceCase } from './conformance.ts'
export type { LeaseSubject } from './fixture.ts'
