import { onTestFinished } from 'vitest'
import type { Database } from '../../src/postgres/database.ts'

/** The tables have so many buckets until the test is finished. What it wrote is to be removed before the next one. */
export async function withBuckets(db: Database, count: number): Promise<void> {
  await db.query({ text: `call leasehold.raise_bucket_count(${count})` })
  onTestFinished(async () => {
    await db.query({
      text: `call leasehold.set_bucket_counts(1, 1);
        drop trigger outbox_bucket on leasehold.outbox;
        drop trigger webhook_outbox_bucket on leasehold.webhook_outbox;
        alter table leasehold.outbox alter column bucket set default 0;
        alter table leasehold.webhook_outbox alter column bucket set default 0`,
    })
  })
}
