/** What is wrong with the database, and how to repair it. */
import { z } from 'zod'
import { examine } from '../../../doctor/doctor.ts'
import { route } from '../route.ts'

/** All checks together; a client would not wait for longer. */
const TIMEOUT_MS = 20_000

export const DOCTOR = [
  route({
    method: 'GET',
    path: '/doctor',
    summary: 'Examine the database',
    tag: 'doctor',
    role: 'read',
    answer: z.object({
      findings: z.array(
        z.object({
          check: z.string(),
          severity: z.enum(['error', 'warning']),
          text: z.string(),
          remedy: z.string(),
          repair: z.array(z.string()).optional().describe('SQL statements or commands, in order.'),
        }),
      ),
      checks: z.array(
        z.object({
          id: z.string(),
          title: z.string(),
          ok: z.boolean(),
          skipped: z.string().optional(),
          notSeen: z.string().optional(),
          remarks: z.array(z.string()).optional().describe('Worth knowing, and no finding.'),
        }),
      ),
    }),
    // Without the key for secrets, which a reader cannot read.
    run: async ({ db, schema }) => examine(db, { schema, timeoutMs: TIMEOUT_MS }),
  }),
]
