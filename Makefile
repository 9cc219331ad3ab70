# The commands of README.md and docs/guides/reconcile.md under short names; test/makefile.test.ts compares them.
# The services are those of compose.yaml. `make scale RECONCILERS=5` starts or stops reconcilers until there are five. Without
# RECONCILERS, compose takes the number from .env, or else two: make sets none, because the environment wins over .env.

.DEFAULT_GOAL := help
.PHONY: help demo test build start scale stop processes

help:
	@sed -n 's/^\([a-z]*\):$$/make \1/p' Makefile

demo:
	npm ci && npm start -- --demo

test:
	npm ci && npm test

build:
	docker compose build

start:
	docker compose up --build --detach

scale:
	docker compose up --detach --no-recreate

stop:
	docker compose --profile all down

processes:
	npm ci && npm run build && node scripts/topology.mjs
