import type { NextConfig } from 'next'

const config: NextConfig = {
  serverExternalPackages: ['leasehold'],
  // This folder is inside a repository that has a lock file of its own.
  turbopack: { root: import.meta.dirname },
}

export default config
