# Everything but the database: the command line, the library and the examples. compose.yaml says what runs of it.
FROM node:24-slim AS build
WORKDIR /app
COPY package.json package-lock.json ./
# Scripts of packages are for the embedded PostgreSQL, which a container does not need.
RUN npm ci --ignore-scripts
COPY tsconfig.json tsconfig.build.json ./
COPY src src
RUN npm run build

FROM node:24-slim
ENV NODE_ENV=production
WORKDIR /app
COPY package.json package-lock.json ./
RUN npm ci --omit=dev --ignore-scripts && npm cache clean --force
COPY --from=build /app/dist dist
COPY migrations migrations
COPY examples examples
RUN ln -s /app/dist/cli/main.js /usr/local/bin/leasehold && chmod +x dist/cli/main.js
USER node
CMD ["leasehold", "--help"]
