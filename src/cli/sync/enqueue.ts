import { createSync } from '../../sync/index.ts'
import type { Run } from '../command.ts'
import { withSync } from '../database.ts'
import { invalidArgument, isSet, textFlag } from '../flags.ts'
import { printable, printableJson } from '../output.ts'
import { durationFlag } from './flags.ts'

/** `leasehold sync enqueue <definition> <matrix>` */
export async function enqueueCommand(run: Run): Promise<number> {
  const { print, flags, args } = run
  const [definition = '', matrixId = ''] = args
  if (definition.trim() === '')
    throw invalidArgument('<definition>', definition, 'give the name of a definition.')
  if (matrixId.trim() === '') throw invalidArgument('<matrix>', matrixId, 'say what is to be synced.')
  const priority = priorityFlag(flags)
  const freshForMs = durationFlag(flags, 'freshFor')
  const job = {
    matrixId,
    force: isSet(flags, 'force'),
    parallel: isSet(flags, 'parallel'),
    ...(priority === undefined ? {} : { priority }),
    ...(freshForMs === undefined ? {} : { freshForMs }),
    ...paramsFlag(flags),
  }
  const enqueued = await withSync(run, async (db, schema) =>
    createSync({ schema }).enqueue(db, definition, job),
  )
  const { jobId, created } = enqueued
  const what = `${printable(definition)}, ${printable(matrixId)}`
  if (isSet(flags, 'json')) print(`${printableJson(enqueued)}\n`)
  else if (created)
    print(`Written: job ${jobId}, ${what}. \`leasehold sync status ${jobId} --watch\` follows it.\n`)
  else
    print(
      `Nothing written: job ${jobId} of ${what} is open already; --parallel asks for another beside it.\n`,
    )
  return 0
}

function priorityFlag(flags: Run['flags']): number | undefined {
  const given = textFlag(flags, 'priority')
  if (given === undefined || /^-?\d{1,9}$/.test(given)) return given === undefined ? undefined : Number(given)
  throw invalidArgument('priority', given, 'give a whole number; higher ones come first.')
}

function paramsFlag(flags: Run['flags']): { readonly params?: unknown } {
  const given = textFlag(flags, 'params')
  if (given === undefined) return {}
  try {
    return { params: JSON.parse(given) as unknown }
  } catch {
    throw invalidArgument('params', given, `give JSON, for example '{"year": 2024}'.`)
  }
}
