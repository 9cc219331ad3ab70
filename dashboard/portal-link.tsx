/** Links that open the portal of a tenant, for operators who try it or send it to a customer. */
import type { JSX } from 'preact'
import { useId, useState } from 'preact/hooks'
import { answer, type Answer, api } from './api.ts'
import { config, isPortal } from './config.ts'
import { useAction } from './query.ts'
import { may, ownTenant } from './session.ts'
import { Dialog, Problem, Sample } from './ui/feedback.tsx'
import { Copyable, Time } from './ui/values.tsx'

export function PortalLinkButton(): JSX.Element | null {
  const [isOpen, setOpen] = useState(false)
  if (isPortal || !may('operate')) return null
  return (
    <>
      <button type="button" onClick={() => setOpen(true)}>
        Portal link…
      </button>
      {isOpen ? <PortalLinkDialog onClose={() => setOpen(false)} /> : null}
    </>
  )
}

function PortalLinkDialog({ onClose }: { readonly onClose: () => void }): JSX.Element {
  const own = ownTenant()
  const [tenant, setTenant] = useState(own ?? '')
  const [role, setRole] = useState<'read' | 'operate'>('read')
  const [name, setName] = useState('')
  const [minutes, setMinutes] = useState('5')
  const [link, setLink] = useState<Answer<'postPortalLinks'>>()
  const id = useId()
  const { run, isRunning, problem } = useAction(async () => {
    const body = {
      tenant,
      role,
      expiresInSeconds: Math.round(Number(minutes) * 60),
      ...(name.trim() === '' ? {} : { name: name.trim() }),
    }
    setLink(await answer(api.POST('/portal/links', { body })))
  })
  if (link !== undefined) return <MadeLink of={link} onClose={onClose} />
  return (
    <Dialog title="Portal link" onClose={onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault()
          run()
        }}
      >
        <p class="explanation">
          The portal shows a customer the endpoints and deliveries of one tenant, and nothing else. A link
          opens it once, for an hour.
        </p>
        <p class="field">
          <label htmlFor={`${id}-tenant`}>Tenant</label>
          <input
            id={`${id}-tenant`}
            value={tenant}
            required
            readOnly={own !== null}
            autoComplete="off"
            onInput={(event) => setTenant(event.currentTarget.value)}
          />
        </p>
        <p class="field">
          <label htmlFor={`${id}-role`}>Who opens it may</label>
          <select
            id={`${id}-role`}
            value={role}
            onChange={(event) => setRole(event.currentTarget.value === 'operate' ? 'operate' : 'read')}
          >
            <option value="read">read: look, and change nothing</option>
            <option value="operate">operate: also change endpoints, and replay deliveries</option>
          </select>
        </p>
        <p class="field">
          <label htmlFor={`${id}-name`}>For whom, as the audit names it</label>
          <input
            id={`${id}-name`}
            value={name}
            maxLength={100}
            placeholder="nobody in particular"
            autoComplete="off"
            onInput={(event) => setName(event.currentTarget.value)}
          />
        </p>
        <p class="field">
          <label htmlFor={`${id}-minutes`}>Can be opened for so many minutes</label>
          <input
            id={`${id}-minutes`}
            type="number"
            min={1}
            max={60}
            required
            value={minutes}
            onInput={(event) => setMinutes(event.currentTarget.value)}
          />
        </p>
        <Problem of={problem} />
        <footer>
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary" disabled={isRunning}>
            Make the link
          </button>
        </footer>
      </form>
    </Dialog>
  )
}

function MadeLink({
  of: { path, expiresAt },
  onClose,
}: {
  readonly of: Answer<'postPortalLinks'>
  readonly onClose: () => void
}): JSX.Element {
  const url = `${location.origin}${config.basePath}/${path ?? 'portal'}`
  return (
    <Dialog title="Portal link" onClose={onClose} isWide>
      <div class="shown-once">
        <p>
          It can be opened once, and expires <Time at={expiresAt} />. <b>It is shown only now.</b>
        </p>
        <div class="command link">
          <Copyable text={url} label="the link" />
        </div>
        <p>To show it in a page of yours:</p>
        <Sample>{`<iframe src="${url}" title="Webhooks" style="width: 100%; height: 800px; border: 0"></iframe>`}</Sample>
        <p class="hint">
          A browser shows it there only if the origin of your page is among <code>portalOrigins</code> of this
          server. Your application makes a new link whenever it shows the page:{' '}
          <code>POST {config.basePath}/api/v1/portal/links</code> answers with its <code>path</code>.
        </p>
      </div>
      <footer>
        <button type="button" class="primary" onClick={onClose}>
          Done
        </button>
      </footer>
    </Dialog>
  )
}
