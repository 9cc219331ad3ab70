/** What is shown to somebody who is not signed in. */
import type { JSX } from 'preact'
import { useEffect, useId, useState } from 'preact/hooks'
import type { ApiProblem } from '../api.ts'
import { config } from '../config.ts'
import { useAction } from '../query.ts'
import { signIn, startSession } from '../session.ts'
import { Command } from '../ui/values.tsx'
import { Problem } from '../ui/feedback.tsx'

function Card({ title, children }: { readonly title: string; readonly children: JSX.Element }): JSX.Element {
  const { name, color } = config.instance
  return (
    <main class="card" style={color === undefined ? undefined : { '--instance': color }}>
      <h1>{title}</h1>
      {name === undefined ? null : <p class="instance">{name}</p>}
      {children}
    </main>
  )
}

export function LoginPage(): JSX.Element {
  const [key, setKey] = useState('')
  const id = useId()
  const { run, isRunning, problem } = useAction(signIn)
  if (config.login === 'custom')
    return (
      <Card title="You are not signed in">
        <p>
          Sign in to the application that this dashboard is part of, and{' '}
          <a href={location.href}>load this page again</a>.
        </p>
      </Card>
    )
  const submit = (event: Event): void => {
    event.preventDefault()
    run(key.trim())
  }
  return (
    <Card title="Leasehold">
      <form onSubmit={submit}>
        <p class="field">
          <label htmlFor={id}>Key</label>
          <input
            id={id}
            type="password"
            value={key}
            required
            autoFocus
            autoComplete="current-password"
            placeholder="lhk_…"
            onInput={(event) => setKey(event.currentTarget.value)}
          />
        </p>
        <Problem of={problem} />
        <footer>
          <button type="submit" class="primary" disabled={isRunning}>
            Sign in
          </button>
        </footer>
        <p class="hint">Whoever runs the server creates a key with</p>
        <Command text="leasehold keys create my-name --role operate" />
      </form>
    </Card>
  )
}

export function PortalEndedPage(): JSX.Element {
  return (
    <Card title="This link has ended">
      <p>
        Links to this page work once, and for a short time. Go back to where you found it, and open it again.
      </p>
    </Card>
  )
}

const TRY_AGAIN_MS = 3_000

export function UnreachablePage({ problem }: { readonly problem: ApiProblem }): JSX.Element {
  useEffect(() => {
    const timer = window.setInterval(() => {
      startSession().catch(() => undefined)
    }, TRY_AGAIN_MS)
    return () => window.clearInterval(timer)
  }, [])
  return (
    <Card title="Leasehold">
      <Problem of={problem} />
    </Card>
  )
}
