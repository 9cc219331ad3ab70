import type { NextConfig } from 'next'

const config: NextConfig = {
  // Leasehold reads its migrations and the dashboard from its package, so it stays out of the bundle.
  serverExternalPackages: ['leasehold'],
  // No import leads to these files. With `output: 'standalone'`, Next.js copies what is named here.
  outputFileTracingIncludes: { '/**': ['node_modules/leasehold/{migrations,dist/dashboard}/**'] },
  // This folder is inside a repository that has a lock file of its own.
  turbopack: { root: import.meta.dirname },
}

export default config
