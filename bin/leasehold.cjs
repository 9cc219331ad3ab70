#!/usr/bin/env node
// The command `leasehold`. This file only has syntax that old releases of Node understand, and imports nothing before it
// has checked the release: they would otherwise fail with a syntax error in some module.
'use strict'

var required = require('../package.json').engines.node.replace('>=', '')
var wanted = required.split('.').map(Number)
var found = process.versions.node.split('.').map(Number)

if (found[0] < wanted[0] || (found[0] === wanted[0] && found[1] < wanted[1])) {
  process.stderr.write(
    'leasehold: needs Node ' +
      required +
      ' or later; this is Node ' +
      process.versions.node +
      '. Install a newer one from https://nodejs.org.\n',
  )
  process.exitCode = 1
} else {
  void import('../dist/cli/main.js')
}
