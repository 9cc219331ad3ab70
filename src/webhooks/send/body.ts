/**
 * The document that is POSTed, of the form that Standard Webhooks recommends. Made once, when the event is sent: every
 * endpoint gets the same bytes in every attempt.
 *
 * @param payload as JSON.
 */
export function webhookBody(type: string, timestamp: Date, payload: string): string {
  return `{"type":${JSON.stringify(type)},"timestamp":"${timestamp.toISOString()}","data":${payload}}`
}
