import { type DeliveryDetails, showDelivery } from '../../webhooks/admin/show.ts'
import type { Run } from '../command.ts'
import { withWebhooks } from '../database.ts'
import { isSet } from '../flags.ts'
import { printable, printableJson, relative } from '../output.ts'
import { attemptsText } from './attempts.ts'

/** `leasehold webhooks show <id>` */
export async function showCommand(run: Run): Promise<number> {
  const { print, flags, args, terminal } = run
  const [id = ''] = args
  const delivery = await withWebhooks(run, async (db, schema) => showDelivery(db, id, { schema }))
  if (isSet(flags, 'json')) print(`${printableJson(delivery)}\n`)
  else print(`${described(delivery, new Date(), terminal.width)}\n`)
  return 0
}

function described(delivery: DeliveryDetails, now: Date, width: number | undefined): string {
  const at = (moment: Date | null): string | undefined =>
    moment === null ? undefined : `${moment.toISOString()} (${relative(moment, now)})`
  const { status, lastError, lastErrorCode, tenant, leaseOwner, waitsFor, headers, body, history } = delivery
  const lines: readonly (readonly [string, string | undefined])[] = [
    ['Delivery', delivery.id],
    ['Event id', delivery.eventId],
    ['Type', delivery.type],
    ['Endpoint', `${delivery.endpointUrl ?? 'deleted'} (${delivery.endpointId})`],
    ['Tenant', tenant === '' ? undefined : (tenant ?? undefined)],
    ['Key', delivery.orderingKey ?? 'none'],
    ['Status', leaseOwner === null ? status : `${status}, in flight`],
    ['Waits for', waitsFor === null ? undefined : waiting(waitsFor)],
    ['Failed', failures(delivery)],
    ['Last error', lastErrorCode === null ? undefined : `${lastErrorCode}: ${lastError ?? ''}`],
    ['Sent', at(delivery.createdAt)],
    ['Next attempt', status === 'pending' ? at(delivery.nextAttemptAt) : undefined],
    ['Leased until', leaseOwner === null ? undefined : `${at(delivery.leaseUntil)} by ${leaseOwner}`],
    ['Delivered', at(delivery.deliveredAt)],
    ['Given up', at(delivery.failedAt)],
    ['Token', String(delivery.token)],
  ]
  const facts = lines.flatMap(([name, text]) =>
    text === undefined ? [] : [`${name.padEnd(13)} ${printable(text)}`],
  )
  const beside = Object.keys(headers).length === 0 ? '' : `\nHeaders\n${indented(printableJson(headers))}\n`
  const attempts = history.length === 0 ? '' : `\n${attemptsText(history, now, width)}\n`
  return `${facts.join('\n')}\n${attempts}${beside}\nBody\n${indented(bodyText(body))}`
}

function failures({ attempts, expiries }: DeliveryDetails): string {
  const failed = `${attempts} ${attempts === 1 ? 'attempt' : 'attempts'}`
  return expiries === 0 ? failed : `${failed}, ${expiries} of them by an expired lease`
}

function waiting({ id, inFlight, lastError }: NonNullable<DeliveryDetails['waitsFor']>): string {
  const why = lastError === null ? '' : `: ${lastError}`
  return `delivery ${id} of the same key, which is ${inFlight ? 'in flight' : 'pending'}${why}`
}

/** Indented for people; what is signed is the text as it is, which `--json` shows. */
function bodyText(body: string): string {
  try {
    return printableJson(JSON.parse(body))
  } catch {
    return printable(body)
  }
}

function indented(text: string): string {
  return text.replaceAll(/^/gm, '  ')
}
