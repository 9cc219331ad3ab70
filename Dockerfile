# Everything but the database: the command line, the library and the reference example. compose.yaml says what runs of it.
FROM node:24-slim AS build
WORKDIR /app
COPY package.json package-lock.json ./
# A development dependency that is a folder of the repository.
COPY test/openapi-types test/openapi-types
# Scripts of packages are for the embedded PostgreSQL, which a container does not need.
RUN npm ci --ignore-scripts
COPY tsconfig.json tsconfig.build.json ./
COPY scripts/dashboard.mjs scripts/package-files.mjs scripts/
COPY migrations migrations
COPY dashboard dashboard
COPY src src
RUN npm run build

FROM node:24-slim
ENV NODE_ENV=production
# `work` takes a free port otherwise, which the health check would not know.
ENV LEASEHOLD_PORT=7400
WORKDIR /app
COPY package.json package-lock.json ./
RUN npm ci --omit=dev --ignore-scripts && npm cache clean --force
COPY bin bin
COPY --from=build /app/dist dist
COPY examples/payment-reconciler examples/payment-reconciler
RUN ln -s /app/bin/leasehold.cjs /usr/local/bin/leasehold
USER node
# Whether the process is alive. Whether it is ready, and should get traffic, is /readyz.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
  CMD ["node", "-e", "fetch('http://127.0.0.1:' + process.env.LEASEHOLD_PORT + '/livez').then(({ ok }) => process.exit(ok ? 0 : 1), () => process.exit(1))"]
CMD ["leasehold", "--help"]
