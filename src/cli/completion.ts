/** `leasehold completion <shell>`: a script with which the shell completes commands and flags. */
import type { Command } from 'commander'
import { type Define, type Run, UsageError } from './command.ts'

const SHELLS = ['bash', 'zsh', 'fish'] as const

type Shell = (typeof SHELLS)[number]

/** What can follow a command: its commands and its flags. */
interface Completions {
  /** The command without `leasehold`: `outbox list`. */
  readonly path: string
  readonly words: readonly { readonly word: string; readonly description: string }[]
}

export function addCompletionCommand(program: Command, define: Define): void {
  define(
    program,
    'completion <shell>',
    `print a script for ${SHELLS.join(', ')} that completes commands and flags`,
    [],
    async (run) => Promise.resolve(completion(run, program)),
    (command) => command.addHelpText('after', HELP),
  )
}

const HELP = `
  bash   eval "$(leasehold completion bash)"
  zsh    eval "$(leasehold completion zsh)"
  fish   leasehold completion fish | source

Put the line into ~/.bashrc, ~/.zshrc or ~/.config/fish/config.fish.`

function completion({ args, print }: Run, program: Command): number {
  const [given = ''] = args
  const shell = SHELLS.find((each) => each === given)
  if (shell === undefined)
    throw new UsageError(
      `there is no completion for ${JSON.stringify(given)}: give one of ${SHELLS.join(', ')}.`,
    )
  print(SCRIPTS[shell](completionsOf(program)))
  return 0
}

/** Of the command and of all below it, from what `--help` shows of each. */
function completionsOf(command: Command, path = ''): readonly Completions[] {
  const help = command.createHelp()
  const children = help.visibleCommands(command).filter((child) => child.name() !== 'help')
  const flags = help
    .visibleOptions(command)
    .map(({ long, description }) => ({ word: long ?? '', description }))
  const words = [
    ...children.map((child) => ({ word: child.name(), description: child.description() })),
    ...flags,
  ]
  return [
    { path, words: words.filter(({ word }) => word !== '') },
    ...children.flatMap((child) => completionsOf(child, `${path} ${child.name()}`.trim())),
  ]
}

const SCRIPTS: Readonly<Record<Shell, (completions: readonly Completions[]) => string>> = { bash, zsh, fish }

function bash(completions: readonly Completions[]): string {
  const cases = completions.map(
    ({ path, words }) => `    '${path}') words='${words.map(({ word }) => word).join(' ')}' ;;`,
  )
  const groups = completions.map(({ path }) => `'${path}'`).join('|')
  return `# Completion of leasehold for bash.
_leasehold() {
  local word path='' words=''
  for word in "\${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "\${path:+$path }$word" in
      ${groups}) path="\${path:+$path }$word" ;;
    esac
  done
  case "$path" in
${cases.join('\n')}
  esac
  COMPREPLY=($(compgen -W "$words" -- "\${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _leasehold leasehold
`
}

function zsh(completions: readonly Completions[]): string {
  const cases = completions.map(({ path, words }) => {
    const described = words.map(({ word, description }) =>
      quoted(`${word.replaceAll(':', '\\:')}:${oneLine(description)}`),
    )
    return `    '${path}') words=(\n${described.map((each) => `      ${each}`).join('\n')}\n    ) ;;`
  })
  const groups = completions.map(({ path }) => `'${path}'`).join('|')
  return `#compdef leasehold
# Completion of leasehold for zsh.
_leasehold() {
  local word command_path=''
  local -a words_found; words_found=("\${(@)words[2,CURRENT-1]}")
  for word in "\${words_found[@]}"; do
    case "\${command_path:+$command_path }$word" in
      ${groups}) command_path="\${command_path:+$command_path }$word" ;;
    esac
  done
  local -a words
  case "$command_path" in
${cases.join('\n')}
  esac
  _describe 'leasehold' words || _files
}
compdef _leasehold leasehold
`
}

function fish(completions: readonly Completions[]): string {
  const lines = completions.flatMap(({ path, words }) =>
    words.map(({ word, description }) => {
      const condition = `__leasehold_at ${quoted(path)}`
      const what = word.startsWith('--') ? `-l ${word.slice(2)}` : `-f -a ${word}`
      return `complete -c leasehold -n ${quoted(condition.replaceAll("'", '"'))} ${what} -d ${quoted(oneLine(description))}`
    }),
  )
  const paths = completions.map(({ path }) => quoted(path)).join(' ')
  return `# Completion of leasehold for fish.
set -g __leasehold_paths ${paths}
function __leasehold_at
  set -l path ''
  for word in (commandline -opc)[2..-1]
    set -l next (string trim -- "$path $word")
    contains -- "$next" $__leasehold_paths; and set path $next
  end
  test "$path" = "$argv[1]"
end
${lines.join('\n')}
`
}

function oneLine(text: string): string {
  return text.replaceAll(/\s+/g, ' ')
}

function quoted(text: string): string {
  return `'${text.replaceAll("'", String.raw`'\''`)}'`
}
