/** The dashboard. It uses the HTTP API, and nothing else. */
import { render } from 'preact'
import { App } from './app.tsx'

const root = document.getElementById('app')
if (root !== null) render(<App />, root)
