/**
 * Bounds what a receiver may send. undici's parser limits the names and values of headers only: a reason phrase, empty
 * lines before the status line and the extensions of chunks cost processor time without end.
 */
import type { Socket } from 'node:net'

import { errors } from 'undici'

import { NetworkFailure } from './failure.ts'

export interface ReceiveLimit {
  /** From one request to the next. */
  readonly maxBytes: number
  readonly isRequestInFlight: () => boolean
}

/**
 * undici reads all that has arrived, up to 128 KiB, and parses it even if it closes the connection in the middle. With
 * small reads it stops soon.
 */
const MAX_READ_BYTES = 2_048

/** Closes the connection when it has received more than the limit, or anything between two requests. */
export function limitReceivedBytes(socket: Socket, { maxBytes, isRequestInFlight }: ReceiveLimit): void {
  const read = socket.read.bind(socket)
  let received = 0
  let written = 0
  socket.read = (size?: number) => {
    if (socket.destroyed) return null
    const available = Math.min(socket.readableLength, MAX_READ_BYTES)
    // A socket without an encoding reads buffers.
    const chunk = (size === undefined && available > 0 ? read(available) : read(size)) as Buffer | null
    if (chunk === null) return null
    const { bytesWritten } = socket
    if (bytesWritten > 0 && !isRequestInFlight()) {
      // With an error of this class, undici sends a waiting request on another connection.
      socket.destroy(new errors.InformationalError('the receiver sent something between two requests'))
      return null
    }
    // Requests are written whole, so what was written changes only with the next one.
    if (bytesWritten !== written) received = 0
    written = bytesWritten
    received += chunk.byteLength
    if (received <= maxBytes) return chunk
    const text = `the receiver sent more than ${maxBytes} bytes and the head of its answer was not complete`
    socket.destroy(new NetworkFailure('headersTooLarge', text))
    return null
  }
}
