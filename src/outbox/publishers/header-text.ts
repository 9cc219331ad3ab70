import { PermanentError } from '../../worker/completion/outcome.ts'
import { percentEncoded } from './cloudevents.ts'

const NAME = /^[\w!#$%&'*+\-.^`|~]+$/
const PLAIN_VALUE = /^(?:[\u0021-\u007e](?:[\u0020-\u007e]*[\u0021-\u007e])?)?$/

/**
 * Headers as HTTP and NATS can carry them. A value with anything but printable ASCII in it is percent-encoded; a name
 * they do not allow can never be sent. What `reserved` fits is left out: it would steer the target, not inform it.
 */
export function headerText(
  publisher: string,
  headers: Readonly<Record<string, string>>,
  reserved: RegExp,
): Record<string, string> {
  const carried: Record<string, string> = {}
  for (const [name, value] of Object.entries(headers)) {
    if (!NAME.test(name)) {
      throw new PermanentError(`${publisher} cannot carry a header named ${JSON.stringify(name)}`)
    }
    if (reserved.test(name)) continue
    carried[name] = PLAIN_VALUE.test(value) ? value : percentEncoded(value)
  }
  return carried
}
