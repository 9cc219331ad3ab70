// Writes what is generated in the documentation: the parts of pages between `<!-- begin generated: … -->` and
// `<!-- end generated: … -->`, and docs/public/llms.txt. Everything comes from the code, the built package, the migrations
// and docs/openapi.json. Run `npm run build` first. test/reference.test.ts compares what is checked in.
import { readdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { createProgram } from '../dist/cli/program.js'
import {
  DESCRIPTIONS,
  FILE_SETTINGS,
  fileVariableOf,
  flagOf,
  SECRET_SETTINGS,
  SETTING_NAMES,
  settingsSchema,
  variableOf,
} from '../dist/config/schema.js'
import { timing } from '../dist/lease/timing.js'
import { DEFAULT_WORKER_SETTINGS, WORKER_SETTING_RULES } from '../dist/worker/settings.js'
import { navigation, readPages } from '../docs/.vitepress/pages.mjs'
import { entryPoints } from './api.mjs'

const ROOT = fileURLToPath(new URL('..', import.meta.url))
const read = async (path) => readFile(join(ROOT, path), 'utf8')

/** Path → text of every file with a generated part. `unused`: what is generated and on no page; `unknown`: the opposite. */
export async function reference() {
  const parts = await generatedParts()
  const unused = new Set(parts.keys())
  const unknown = []
  const files = new Map()
  const pages = (await readPages()).map((page) => {
    const text = page.text.replaceAll(
      /(<!-- begin generated: (.+?) -->\n).*?(<!-- end generated: \2 -->)/gs,
      (_, begin, name, end) => {
        unused.delete(name)
        const part = parts.get(name)
        if (part === undefined) unknown.push(`${page.path}: ${name}`)
        return `${begin}\n${(part ?? '').replaceAll(/\n{3,}/g, '\n\n').trimEnd()}\n\n${end}`
      },
    )
    if (text.includes('<!-- begin generated: ')) files.set(`docs/${page.path}`, text)
    return { ...page, text }
  })
  files.set('docs/public/llms.txt', llmsText(pages))
  return { files, unused: [...unused], unknown }
}

async function generatedParts() {
  const program = await createProgram({ out: () => {}, err: () => {} }, async () => {})
  return new Map([
    ...settingParts(leafCommands(program)),
    ['worker settings', await workerSettings()],
    ['commands', commandList(program)],
    ['options of commands', commandSections(program)],
    ['operations', httpOperations(JSON.parse(await read('docs/openapi.json')))],
    ...(await sqlParts()),
    ['events', await events()],
    ['exports', await exportedNames()],
    ['faults', await faults()],
    ['decisions', await decisions()],
  ])
}

// ---- Settings

function* settingParts(commands) {
  yield ['settings', settingList()]
  for (const name of SETTING_NAMES) yield [`setting ${name}`, setting(name, commands)]
}

function settingList() {
  const rows = SETTING_NAMES.map((name) => [
    `[\`${name}\`](#${name.toLowerCase()})`,
    SECRET_SETTINGS.includes(name) ? 'none: it is a secret' : code(flagOf(name)),
    code(variableOf(name)),
    defaultOf(name),
  ])
  return table(['setting', 'flag', 'environment', 'default'], rows)
}

function setting(name, commands) {
  const isSecret = SECRET_SETTINGS.includes(name)
  const usedBy = commands.filter(({ options }) => options.some(({ long }) => long === flagOf(name)))
  const everywhere = usedBy.length > 10 ? 'every command that uses the database' : undefined
  const variables = [variableOf(name), ...(FILE_SETTINGS.includes(name) ? [fileVariableOf(name)] : [])]
  return [
    `${sentence(purposeOf(name))}\n`,
    table(
      ['', ''],
      [
        [
          'flag',
          isSecret
            ? 'none: everybody on the machine can read the command line of a process'
            : code(flagOf(name)),
        ],
        ['environment', variables.map(code).join(', ')],
        ['type', typeOf(settingsSchema.shape[name])],
        ['default', defaultOf(name)],
        ['rule', prose(DESCRIPTIONS[name].rule)],
        ...(isSecret ? [] : [['flag of', everywhere ?? usedBy.map(({ path }) => code(path)).join(', ')]]),
      ],
    ),
  ].join('\n')
}

/** "… (default: 30000)" → what comes before, and the default. */
function purposeOf(name) {
  return DESCRIPTIONS[name].purpose.replace(/ \(default: .+\)$/, '')
}

function defaultOf(name) {
  const told = / \(default: (.+)\)$/.exec(DESCRIPTIONS[name].purpose)?.[1]
  const { data } = settingsSchema.safeParse({})
  const value = data[name] ?? (name === 'leaseMs' ? timing().leaseMs : undefined)
  if (value === undefined || (Array.isArray(value) && value.length === 0))
    return /^\d+$/.test(told ?? '') ? code(told) : prose(told ?? 'none')
  const shown = String(value)
  if (told !== shown && told?.startsWith(`${shown};`) !== true)
    throw new Error(`${name}: its description says "default: ${told}", and its default is ${shown}`)
  return told === shown ? code(shown) : `${code(shown)}${prose(told.slice(shown.length))}`
}

function typeOf(schema) {
  const { def } = schema
  if (def.innerType !== undefined) return typeOf(def.innerType)
  if (def.type === 'pipe') return typeOf(def.out)
  return { string: 'text', number: 'number', array: 'list', enum: 'text' }[def.type] ?? def.type
}

async function workerSettings() {
  const described = new Map([
    ...members(await declarationText('dist/lease/timing.d.ts', 'Timing')),
    ...members(await declarationText('dist/worker/settings.d.ts', 'WorkerSettings')),
  ])
  const derived = {
    leaseMs: code(timing().leaseMs),
    heartbeatMs: `${timing().heartbeatMs / timing().leaseMs} × lease; must be less than a third of it`,
    reaperIntervalMs: `${code(timing().reaperIntervalMs)}, or a third of the lease if that is shorter; must be less than the lease`,
    shutdownTimeoutMs: `${timing().shutdownTimeoutMs / timing().leaseMs} × lease; must be at most the lease`,
  }
  const rows = Object.entries(WORKER_SETTING_RULES).map(([name, { text }]) => [
    code(name),
    derived[name] ?? code(DEFAULT_WORKER_SETTINGS[name]),
    prose(text),
    described.get(name)?.comment ?? '',
  ])
  return table(['setting', 'default', 'rule', 'meaning'], rows)
}

// ---- Commands

function leafCommands(command, path = '') {
  const own = command.commands.filter((child) => child.name() !== 'help')
  return own.flatMap((child) => {
    const childPath = `${path} ${child.name()}`.trim()
    if (child.commands.length > 0) return leafCommands(child, childPath)
    return [{ path: childPath, command: child, options: child.options.filter(({ hidden }) => !hidden) }]
  })
}

function usageOf({ path, command }) {
  return `leasehold ${path} ${command.usage().replace('[options]', '').trim()}`.trim()
}

function commandList(program) {
  const rows = leafCommands(program).map((each) => [
    `[\`leasehold ${each.path}\`](#${`leasehold ${each.path}`.replaceAll(' ', '-')})`,
    prose(each.command.description()),
  ])
  return table(['command', 'what it does'], rows)
}

function commandSections(program) {
  return leafCommands(program)
    .map((each) => {
      const settings = each.options.filter(({ helpGroupHeading }) => helpGroupHeading === 'Settings:')
      const own = each.options.filter((option) => !settings.includes(option))
      const rows = own.map(({ flags, description, defaultValue, mandatory }) => {
        const given =
          defaultValue === undefined || typeof defaultValue === 'boolean' ? '' : ` (default: ${defaultValue})`
        return [code(flags), prose(`${description}${mandatory ? ' (required)' : ''}${given}`)]
      })
      const links = settings.map(({ long }) => {
        const name = SETTING_NAMES.find((setting) => flagOf(setting) === long)
        return `[\`${long}\`](settings.md#${name.toLowerCase()})`
      })
      return [
        `### leasehold ${each.path}\n`,
        `${sentence(each.command.description())}\n`,
        `\`\`\`text\n${usageOf(each)}${own.length > 0 ? ' [options]' : ''}\n\`\`\`\n`,
        ...(rows.length > 0 ? [`${table(['option', ''], rows)}\n`] : []),
        ...(links.length > 0 ? [`Settings: ${links.join(', ')}.\n`] : []),
      ].join('\n')
    })
    .join('\n')
}

// ---- HTTP

function httpOperations({ tags, paths, components }) {
  const operations = Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({
      path,
      method: method.toUpperCase(),
      ...operation,
    })),
  )
  return tags
    .map(({ name, description }) => {
      const own = operations.filter((operation) => operation.tags.includes(name))
      const sections = own.map((operation) => httpOperation(operation, components))
      return `### ${name[0].toUpperCase()}${name.slice(1)}\n\n${description}\n\n${sections.join('\n')}`
    })
    .join('\n')
}

function httpOperation(
  { method, path, summary, description, parameters, requestBody, responses },
  components,
) {
  const own = parameters.filter(({ name }) => name !== 'Idempotency-Key')
  const body = requestBody?.content['application/json'].schema
  const success = Object.keys(responses).find((status) => status.startsWith('2'))
  const answer = responses[success].content?.['application/json']?.schema
  const errors = Object.entries(responses).flatMap(([status, { $ref }]) => {
    const response = $ref === undefined ? undefined : components.responses[$ref.split('/').at(-1)]
    return response === undefined ? [] : [status]
  })
  return [
    `#### ${method} ${path}\n`,
    `${sentence(summary)} ${description}\n`,
    ...(own.length > 0
      ? [
          `${table(
            ['parameter', 'in', 'type', ''],
            own.map(({ name, in: place, required, schema, description }) => [
              code(name),
              place,
              schemaType(schema),
              meaningOf({ ...schema, description }, required && place !== 'path'),
            ]),
          )}\n`,
        ]
      : []),
    ...(body === undefined ? [] : [bodyTable(body)]),
    `Answers ${success}${answer === undefined ? '' : ` with ${fieldsOf(answer)}`}; errors: ${errors.join(', ')}.\n`,
  ].join('\n')
}

function bodyTable(schema) {
  const variants = schema.anyOf ?? schema.oneOf ?? [schema]
  return variants
    .map((variant) => {
      const required = variant.required ?? []
      const rows = Object.entries(variant.properties ?? {}).map(([name, property]) => [
        code(name),
        schemaType(property),
        meaningOf(property, required.includes(name)),
      ])
      // An object whose names are not known: the settings of a worker.
      if (rows.length === 0) return `The body is ${prose(variant.description ?? 'an object')}.\n`
      return `${table(['body', 'type', ''], rows)}\n`
    })
    .join('\nor\n\n')
}

function meaningOf({ description, default: usual }, isRequired) {
  return [
    ...(isRequired ? ['required.'] : []),
    ...(description === undefined ? [] : [prose(description)]),
    ...(usual === undefined ? [] : [`Default ${code(usual)}.`]),
  ].join(' ')
}

function fieldsOf(schema) {
  const names = Object.keys(schema.properties ?? {})
  if (schema.properties?.items?.type === 'array' && names.includes('next')) {
    const item = Object.keys(schema.properties.items.items.properties ?? {})
    return `a page: \`next\`, and \`items\` with ${item.map(code).join(', ')}`
  }
  return names.length === 0 ? 'a body' : names.map(code).join(', ')
}

function schemaType(schema) {
  if (schema.enum !== undefined) return schema.enum.map(code).join(', ')
  if (schema.const !== undefined) return code(schema.const)
  const variants = schema.anyOf ?? schema.oneOf
  const single = variants?.find(({ type }) => type !== 'array')
  if (variants?.length === 2 && variants.some(({ type, items }) => type === 'array' && isSame(items, single)))
    return `${schemaType(single)}; may be repeated`
  if (variants !== undefined) return [...new Set(variants.map(schemaType))].join(' or ')
  if (Array.isArray(schema.type)) return schema.type.join(' or ')
  if (schema.type === 'array') return `list of ${schemaType(schema.items ?? {})}`
  const length = schema.maxLength === undefined ? '' : `, at most ${schema.maxLength} characters`
  const name = { 'date-time': 'time', uuid: 'uuid' }[schema.format] ?? schema.type ?? 'any JSON'
  const { minimum, maximum = Number.MAX_SAFE_INTEGER } = schema
  const range = maximum < 1e12 ? ` from ${minimum ?? schema.exclusiveMinimum ?? 0} to ${maximum}` : ''
  return `${name === 'string' ? 'text' : name}${name === 'string' && schema.maxLength !== 2000 ? length : ''}${range}`
}

function isSame(one, other) {
  return JSON.stringify(one) === JSON.stringify(other)
}

// ---- SQL

async function sqlParts() {
  const { definitions } = JSON.parse(await read('migrations/schema.json'))
  const files = (await readdir(join(ROOT, 'migrations'))).filter((file) => /^\d+_.*\.sql$/.test(file))
  const migrations = (
    await Promise.all(files.toSorted().map(async (file) => read(`migrations/${file}`)))
  ).join('\n')
  const comments = sqlComments(`${migrations}\n${await read('src/postgres/migrate.ts')}`)
  const tables = Object.entries(definitions.tables).map(([name, { columns }]) => {
    const rows = Object.entries(columns).map(([column, { type, default: given, notNull }]) => [
      code(column),
      [
        shortType(type),
        ...(notNull ? ['not null'] : []),
        ...(given ? [`default ${code(shortType(given).replace(/::[a-z ]+$/, ''))}`] : []),
      ].join(', '),
      prose(comments.get(`column ${name}.${column}`) ?? ''),
    ])
    return `### ${name}\n\n${prose(comments.get(`table ${name}`) ?? '')}\n\n${table(['column', 'type', ''], rows)}\n`
  })
  const views = Object.keys(definitions.views).map((name) => [
    code(name),
    prose(comments.get(`view ${name}`) ?? ''),
  ])
  const functions = Object.entries(definitions.functions).map(([signature, definition]) => ({
    name: signature.split('(')[0],
    definition: definition.replaceAll('@schema@.', ''),
  }))
  const shown = functions.filter(({ definition }) => !/RETURNS trigger/.test(definition))
  const functionSections = shown.map(({ name, definition }) => {
    const about = prose(comments.get(`function ${name}`) ?? '')
    return `### ${name}()\n\n${about}\n\n\`\`\`text\n${signatureOf(definition)}\n\`\`\`\n`
  })
  const objects = [...Object.keys(definitions.tables), ...Object.keys(definitions.views)]
  const kinds = ['producer', 'worker', 'dispatcher', 'reader', 'operator', 'api', 'tenant']
  const roles = objects.map((object) => [
    code(object),
    ...kinds.map((kind) => privileges(definitions.grants[kind], object)),
  ])
  return [
    ['tables', tables.join('\n')],
    ['views', table(['view', ''], views)],
    ['functions', functionSections.join('\n')],
    ['grants', table(['table or view', ...kinds], roles)],
  ]
}

/** `comment on column outbox.id is '…'` → `column outbox.id` → the text. A function is known by its name. */
function sqlComments(text) {
  const found = new Map()
  const pattern = /comment on (table|column|view|function|procedure) ([^\n]+?) is\s+'((?:[^']|'')*)'/g
  for (const [, kind, target, comment] of text.matchAll(pattern)) {
    const isRoutine = kind === 'function' || kind === 'procedure'
    const name = isRoutine ? target.split('(')[0] : target.replace('${table}', 'migrations')
    found.set(`${isRoutine ? 'function' : kind} ${name}`, comment.replaceAll("''", "'"))
  }
  return found
}

function signatureOf(definition) {
  const [, head, returns] = /(?:FUNCTION|PROCEDURE) (.+?)\n(?: RETURNS (.+?)\n)?/s.exec(definition)
  const [, name, list] = /^(\w+)\((.*)\)$/s.exec(shortType(head).replaceAll(/::[a-z ]+(?=[,)])/g, ''))
  const parameters = list.replaceAll(/ ?\bIN /g, '').replaceAll(' DEFAULT ', ' default ')
  const lines =
    parameters.length > 60 ? `\n  ${parameters.replaceAll(/, (?=\w+ \w)/g, ',\n  ')}\n` : parameters
  return `${name}(${lines})${returns === undefined ? '' : ` → ${shortType(returns)}`}`
}

function shortType(type) {
  return type
    .replaceAll('@schema@.', '')
    .replaceAll('timestamp with time zone', 'timestamptz')
    .replaceAll('double precision', 'float8')
}

/** S, I, U and D, or a small letter where the privilege is for some columns only. */
function privileges(grants, object) {
  const letters = ['select', 'insert', 'update', 'delete'].map((verb) => {
    if (`${verb} on @schema@.${object}` in grants) return verb[0].toUpperCase()
    return `${verb} columns on @schema@.${object}` in grants ? verb[0] : ''
  })
  return letters.join('')
}

// ---- Events

async function events() {
  const file = 'dist/worker/events.d.ts'
  const bases = {
    OfWorker: ['worker'],
    OfTable: ['worker', 'table'],
    OfRow: ['worker', 'table', 'id', 'token'],
  }
  const map = await declarationText(file, 'EventMap')
  const rows = [...members(map)].map(([name, { type, comment }]) => {
    if (comment === '') throw new Error(`${file}: the event ${name} has no comment`)
    const [base, own = ''] = type.split(/ & (?=\{)/)
    const fields = own === '' ? [] : [...members(own)]
    return [
      code(name),
      comment,
      [
        bases[base].map(code).join(', '),
        ...fields.map(([field, { type: fieldType, comment: text, isOptional }]) => {
          const shown = `${code(`${field}${isOptional ? '?' : ''}`)}: ${code(fieldType.replaceAll('readonly ', ''))}`
          return text === '' ? shown : `${shown}. ${text}`
        }),
      ].join('<br>'),
    ]
  })
  return table(['event', 'when', 'fields'], rows)
}

/** The declaration of an interface in a built declaration file, without its head. */
async function declarationText(file, name) {
  const text = await read(file)
  const start = text.indexOf(`interface ${name} `)
  const open = text.indexOf('{', start)
  return text.slice(open, text.indexOf('\n}', open) + 2)
}

/** Name → type and comment of each member of `{ … }`, of the first level. */
function members(text) {
  const found = new Map()
  const body = text.slice(text.indexOf('{') + 1, text.lastIndexOf('}'))
  const indent = /\n( +)\S/.exec(body)?.[1] ?? ''
  const pattern = new RegExp(
    `^${indent}(?:(/\\*\\*(?:(?!\\*/)[\\s\\S])*\\*/)\\n${indent})?(?:readonly )?(\\w+)(\\??): ([\\s\\S]*?);$(?=\\n${indent}[^\\s}]|\\s*$(?![\\s\\S]))`,
    'gm',
  )
  for (const [, comment = '', name, optional, type] of body.matchAll(pattern))
    found.set(name, { type: type.trim(), comment: commentText(comment), isOptional: optional === '?' })
  return found
}

// ---- Exports

async function exportedNames() {
  const points = await entryPoints({ documented: true })
  return points
    .map(({ name, comment, declarations }) => {
      const intro = comment === '' ? '' : `${commentText(comment, '\n')}\n\n`
      return `## ${name}\n\n${intro}${declarations.map(exportedName).join('\n')}`
    })
    .join('\n')
}

/** The test of the code blocks parses what follows, and does not run it. */
const NO_RUN = '<!-- no-run: a declaration -->'

function exportedName({ name, text, comment }) {
  if (comment === '' && /^export (declare )?(function|class|const) /.test(text))
    throw new Error(`${name} is exported and has no comment`)
  const signature = withoutRequirements(
    text.replaceAll(/^export (declare (?=function))?/gm, '').replaceAll(/^ {4,}/gm, halfIndent),
  )
  const isLong = comment.includes('```')
  const about = commentText(comment, isLong ? '\n' : ' ')
    .replaceAll('```ts', `${NO_RUN}\n\`\`\`ts no-run`)
    .replace(/.$/s, '$&\n\n')
  return `### ${name}\n\n${about}${NO_RUN}\n\`\`\`ts no-run\n${signature}\n\`\`\`\n`
}

function halfIndent(spaces) {
  return ' '.repeat(Math.ceil(spaces.length / 2))
}

// ---- Others

async function faults() {
  const files = (await readdir(join(ROOT, 'faults/cases'))).filter((file) => file.endsWith('.mjs'))
  const rows = await Promise.all(
    files.toSorted().map(async (file) => {
      const title = /\btitle:\s*(['"])(.*?)\1,?$/m.exec(await read(`faults/cases/${file}`))?.[2]
      if (title === undefined) throw new Error(`faults/cases/${file} has no title`)
      return [code(file.replace('.mjs', '')), prose(title)]
    }),
  )
  return table(['fault', 'what happens'], rows)
}

async function decisions() {
  const files = (await readdir(join(ROOT, 'docs/decisions'))).filter((file) => /^\d.*\.md$/.test(file))
  const lines = await Promise.all(
    files.toSorted().map(async (file) => {
      const title = /^# (.+)$/m.exec(await read(`docs/decisions/${file}`))?.[1]
      return `- [${title}](${file})`
    }),
  )
  return `${lines.join('\n')}\n`
}

/** https://llmstxt.org: the pages with a sentence about each. */
function llmsText(pages) {
  const home = pages.find(({ path }) => path === 'index.md')
  const groups = navigation(pages).map(({ text, pages: own }) => {
    const lines = own.map(({ path, title, description }) => `- [${title}](${path}): ${description}`)
    return `## ${text}\n\n${lines.join('\n')}\n`
  })
  return [`# Leasehold\n`, `> ${home.description}\n`, ...groups].join('\n')
}

// ---- Markdown

function table(head, rows) {
  const line = (cells) =>
    `| ${cells.map((cell) => cell.replaceAll('\n', ' ').replaceAll(/(?<!\\)\|/g, '\\|')).join(' | ')} |`
  return [line(head), `|${head.map(() => '---').join('|')}|`, ...rows.map(line), ''].join('\n')
}

function code(value) {
  return `\`${String(value)}\``
}

/** Text that is not Markdown: what looks like a tag is code, and stars and underscores are no emphasis. */
function prose(text) {
  return text
    .split(/(`[^`]*`)/)
    .map((part, i) =>
      i % 2 === 1 ? part : part.replaceAll(/<[\w -]+>|\S*\*\S*|(?<![\w/])_\S*/g, (special) => code(special)),
    )
    .join('')
}

function sentence(text) {
  const [first = ''] = text
  return `${first.toUpperCase()}${prose(text.slice(1)).replace(/\.$/, '')}.`
}

/** A documentation comment without its frame. */
function commentText(comment, lineEnd = ' ') {
  const text = comment.replaceAll(/^\s*(?:\/\*\*|\*\/|\*) ?|\*\/$/gm, '').trim()
  return withoutRequirements(lineEnd === ' ' ? text.replaceAll(/\s*\n\s*/g, ' ') : text)
}

/** Comments name the requirements that the code fulfils, for the people who maintain it. */
function withoutRequirements(text) {
  return text.replaceAll(
    / \((?:(?:RULE|LIFE|WH|SYNC|REC)-[\w-]+|D\d+)(?:, (?:(?:RULE|LIFE|WH|SYNC|REC)-[\w-]+|D\d+))*\)/g,
    '',
  )
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const { files, unused, unknown } = await reference()
  if (unknown.length > 0) throw new Error(`no such generated part: ${unknown.join(', ')}`)
  if (unused.length > 0) throw new Error(`on no page: ${unused.join(', ')}`)
  for (const [path, text] of files) await writeFile(join(ROOT, path), text)
  process.stdout.write(`${files.size} files are written.\n`)
}
