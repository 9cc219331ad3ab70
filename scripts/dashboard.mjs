// Builds the dashboard into dist/dashboard, as a part of scripts/package-files.mjs: one script, one style sheet, and a list of the files with their hashes, which
// the server reads. Each file is compressed here, once; the server derives the other encodings from that.
import { createHash } from 'node:crypto'
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { brotliCompress, constants } from 'node:zlib'
import { rolldown } from 'rolldown'

const ROOT = fileURLToPath(new URL('..', import.meta.url))
const SOURCE = join(ROOT, 'dashboard')
const TARGET = join(ROOT, 'dist', 'dashboard')

async function script() {
  const bundle = await rolldown({
    input: join(SOURCE, 'main.tsx'),
    tsconfig: join(SOURCE, 'tsconfig.json'),
    platform: 'browser',
    transform: { target: 'es2022' },
  })
  const { output } = await bundle.generate({ format: 'esm', minify: true, sourcemap: false })
  await bundle.close()
  return output[0].code
}

async function styles() {
  const own = await readFile(join(SOURCE, 'style.css'), 'utf8')
  const ofCharts = await readFile(join(ROOT, 'node_modules/uplot/dist/uPlot.min.css'), 'utf8')
  // Comments and indentation are for us.
  return `${ofCharts}\n${own}`.replaceAll(/\/\*[^]*?\*\//g, '').replaceAll(/\n\s*/g, '\n')
}

export async function buildDashboard() {
  const assets = [
    { name: 'app', extension: 'js', type: 'text/javascript; charset=utf-8', text: await script() },
    { name: 'style', extension: 'css', type: 'text/css; charset=utf-8', text: await styles() },
    {
      name: 'icon',
      extension: 'svg',
      type: 'image/svg+xml',
      text: await readFile(join(SOURCE, 'icon.svg'), 'utf8'),
    },
  ]

  await rm(TARGET, { recursive: true, force: true })
  await mkdir(TARGET, { recursive: true })
  const files = {}
  for (const { name, extension, type, text } of assets) {
    const file = `${name}-${createHash('sha256').update(text).digest('hex').slice(0, 16)}.${extension}`
    const quality = { params: { [constants.BROTLI_PARAM_QUALITY]: 11 } }
    await writeFile(join(TARGET, `${file}.br`), await promisify(brotliCompress)(text, quality))
    files[name] = { file, type }
  }
  await writeFile(join(TARGET, 'assets.json'), `${JSON.stringify(files, null, 2)}\n`)
}
