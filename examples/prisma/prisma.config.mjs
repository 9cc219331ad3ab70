import { defineConfig } from 'prisma/config'

// `prisma generate` would download the schema engine, which only migrations of Prisma use.
process.env.PRISMA_SCHEMA_ENGINE_BINARY ??= process.execPath

export default defineConfig({ schema: 'schema.prisma' })
