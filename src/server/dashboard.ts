/**
 * The dashboard as a Fetch handler: its pages at the base path, and below them the HTTP API, which is all that they use.
 * The files are built from `dashboard/`, compressed already, and read once.
 */
import { promisify } from 'node:util'
import { brotliDecompress, gzip } from 'node:zlib'
import { isOrigin } from '../config/schema.ts'
import { LeaseholdError, messageOf } from '../errors.ts'
import { packageVersion, readDashboardFiles } from '../package-files.ts'
import { type Api, type ApiOptions, createApi } from './api/api.ts'

export interface DashboardOptions extends ApiOptions {
  /** Where the dashboard is mounted: an empty text, or a path that begins with a slash. The API is below it, at `/api/v1`. */
  readonly basePath?: string
  /** How this installation is told from others: production should not look like staging. */
  readonly instance?: Instance | undefined
  /** The origins whose pages may show the portal in a frame, such as `https://app.example.com`. Default: none. */
  readonly portalOrigins?: readonly string[] | undefined
}

export interface Instance {
  readonly name?: string | undefined
  /** A colour such as `#b00020`. */
  readonly color?: string | undefined
}

/** What the page is told when it is served. */
interface PageConfig {
  readonly basePath: string
  readonly version: string
  readonly instance: Instance
  /** Whether a person signs in with a key here, or has signed in to the server that the dashboard is part of. */
  readonly login: 'key' | 'custom'
}

interface Asset {
  readonly type: string
  readonly plain: Uint8Array
  readonly br: Uint8Array
  readonly gzip: Uint8Array
}

const COLOR = /^#[0-9a-f]{6}$/i

/** Serves the dashboard and the API that it uses. */
export function createDashboard(options: DashboardOptions): Api {
  const { instance = {}, portalOrigins = [], basePath = '', ...apiOptions } = options
  checkBasePath(basePath)
  checkInstance(instance)
  for (const origin of portalOrigins) checkOrigin(origin)
  const apiPath = `${basePath}/api/v1`
  const api = createApi({ ...apiOptions, basePath: apiPath })
  const login = options.authorize === undefined ? 'key' : 'custom'
  const config: PageConfig = { basePath, version: packageVersion(), instance, login }
  // Customers are not told what runs here.
  const portalConfig: PageConfig = { ...config, version: '', instance: { color: instance.color } }
  const assets = once(readAssets)

  async function answerPage(request: Request, path: string): Promise<Response> {
    const { files, entries } = await assets()
    const name = /^\/assets\/([\w.-]+)$/.exec(path)?.[1]
    if (name !== undefined) return assetResponse(request, files.get(name))
    const isPortal = path === '/portal' || path.startsWith('/portal/')
    const ancestors = isPortal && portalOrigins.length > 0 ? portalOrigins.join(' ') : "'none'"
    const title = isPortal
      ? 'Webhooks'
      : [...(instance.name === undefined ? [] : [instance.name]), 'Leasehold'].join(' · ')
    const headers = { ...PAGE_HEADERS, 'content-security-policy': policy(ancestors) }
    const body = request.method === 'HEAD' ? null : page(isPortal ? portalConfig : config, title, entries)
    return new Response(body, { headers: { ...headers, 'content-type': 'text/html; charset=utf-8' } })
  }

  return {
    async fetch(request, env) {
      const { pathname } = new URL(request.url)
      if (pathname === apiPath || pathname.startsWith(`${apiPath}/`)) return api.fetch(request, env)
      const isBelow = pathname === basePath || pathname.startsWith(`${basePath}/`)
      if (!isBelow || (request.method !== 'GET' && request.method !== 'HEAD'))
        return new Response('There is nothing here.\n', {
          status: isBelow ? 405 : 404,
          headers: PAGE_HEADERS,
        })
      return answerPage(request, pathname.slice(basePath.length)).catch((error: unknown) => {
        options.onError?.(error)
        return new Response(`${messageOf(error)}\n`, { status: 500, headers: PAGE_HEADERS })
      })
    },
    resumeChanges: async () => api.resumeChanges(),
    stop: async () => api.stop(),
  }
}

const PAGE_HEADERS = {
  'cache-control': 'no-store',
  'referrer-policy': 'no-referrer',
  'x-content-type-options': 'nosniff',
  'cross-origin-opener-policy': 'same-origin',
}

/** Payloads and responses of receivers are shown as text. Should one ever get further, it can neither run nor call home. */
function policy(ancestors: string): string {
  return [
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data:",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    `frame-ancestors ${ancestors}`,
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
  ].join('; ')
}

function assetResponse(request: Request, asset: Asset | undefined): Response {
  if (asset === undefined)
    return new Response('There is no such file.\n', { status: 404, headers: PAGE_HEADERS })
  const accepted = request.headers.get('accept-encoding') ?? ''
  const encoding = /\bbr\b/.test(accepted) ? 'br' : /\bgzip\b/.test(accepted) ? 'gzip' : undefined
  const bytes = encoding === undefined ? asset.plain : asset[encoding]
  return new Response(request.method === 'HEAD' ? null : new Uint8Array(bytes), {
    headers: {
      'content-type': asset.type,
      // Its name changes with its content.
      'cache-control': 'public, max-age=31536000, immutable',
      'x-content-type-options': 'nosniff',
      vary: 'accept-encoding',
      ...(encoding === undefined ? {} : { 'content-encoding': encoding }),
    },
  })
}

interface Assets {
  /** By the name of the file. */
  readonly files: ReadonlyMap<string, Asset>
  /** The names of the files. */
  readonly entries: Readonly<Record<'app' | 'style' | 'icon', string>>
}

async function readAssets(): Promise<Assets> {
  try {
    const listed = await readDashboardFiles()
    const files = new Map<string, Asset>()
    for (const { file, type, br } of Object.values(listed)) {
      const plain = await promisify(brotliDecompress)(br)
      files.set(file, { type, plain, br, gzip: await promisify(gzip)(plain) })
    }
    const { app, style, icon } = listed
    return { files, entries: { app: app.file, style: style.file, icon: icon.file } }
  } catch (error) {
    throw new LeaseholdError('DASHBOARD_MISSING', 'The files of the dashboard cannot be read.', {
      remedy: 'Use the published package, or run `npm run build`.',
      cause: error,
    })
  }
}

function page(config: PageConfig, title: string, entries: Assets['entries']): string {
  const asset = (name: keyof Assets['entries']): string =>
    escape(`${config.basePath}/assets/${entries[name]}`)
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="leasehold" content="${escape(JSON.stringify(config))}">
<title>${escape(title)}</title>
<link rel="icon" href="${asset('icon')}" type="image/svg+xml">
<link rel="stylesheet" href="${asset('style')}">
<script type="module" src="${asset('app')}"></script>
</head>
<body>
<noscript>This page needs JavaScript.</noscript>
<div id="app"></div>
</body>
</html>
`
}

function escape(text: string): string {
  return text.replaceAll(/[&<>"']/g, (character) => `&#${character.codePointAt(0)};`)
}

function checkBasePath(basePath: string): void {
  if (basePath === '' || /^(\/[\w.~-]+)+$/.test(basePath)) return
  throw new LeaseholdError('SETTING_INVALID', `createDashboard: basePath is ${JSON.stringify(basePath)}.`, {
    field: 'basePath',
    remedy: 'Give an empty text, or a path such as /admin/leasehold, without a slash at its end.',
  })
}

function checkInstance({ name, color }: Instance): void {
  if (name !== undefined && (name.trim() === '' || name.length > 40))
    throw new LeaseholdError(
      'SETTING_INVALID',
      `createDashboard: instance.name is ${JSON.stringify(name)}.`,
      {
        field: 'instance.name',
        remedy: 'Give a text of 1 to 40 characters, such as production.',
      },
    )
  if (color !== undefined && !COLOR.test(color))
    throw new LeaseholdError(
      'SETTING_INVALID',
      `createDashboard: instance.color is ${JSON.stringify(color)}.`,
      {
        field: 'instance.color',
        remedy: 'Give a colour with six hexadecimal digits, such as #b00020.',
      },
    )
}

/** It becomes part of a header, so nothing else may be in it. */
function checkOrigin(origin: string): void {
  if (isOrigin(origin)) return
  throw new LeaseholdError(
    'SETTING_INVALID',
    `createDashboard: portalOrigins has ${JSON.stringify(origin)}.`,
    {
      field: 'portalOrigins',
      remedy: 'Give origins such as https://app.example.com, without a path.',
    },
  )
}

function once<Result>(read: () => Promise<Result>): () => Promise<Result> {
  let known: Promise<Result> | undefined
  return async () => {
    known ??= read().catch((error: unknown) => {
      known = undefined
      throw error
    })
    return known
  }
}
