/** The HTTP API and the dashboard, to be mounted in a server of your own: `leasehold/server`. */
export { type Api, type ApiOptions, createApi, type WorkerOfOwnTable } from './api/api.ts'
export type { Authorize, RequestEnv } from './api/authorize.ts'
export { type NodeHandler, toNodeHandler } from './api/node.ts'
export type { Problem } from './api/problem.ts'
export type { Caller } from './api/route.ts'
export { createDashboard, type DashboardOptions, type Instance } from './dashboard.ts'
