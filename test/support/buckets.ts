import { onTestFinished } from 'vitest'
import type { Database } from '../../src/postgres/database.ts'
import { migrate } from '../../src/postgres/migrate.ts'

/** The tables have so many buckets until the test is finished. What it wrote is to be removed before the next one. */
export async function withBuckets(db: Database, count: number): Promise<void> {
  onTestFinished(async () => backToOneBucket(db))
  await db.query({ text: `call leasehold.raise_bucket_count(${count})` })
}

/** The tables are as before the number was raised for the first time. Their rows are to be removed. */
export async function backToOneBucket(db: Database): Promise<void> {
  const triggers = ['outbox', 'webhook_outbox'].flatMap((table) =>
    ['given', 'missing', 'replayed'].map(
      (which) => `drop trigger if exists ${table}_bucket_${which} on leasehold.${table};`,
    ),
  )
  await db.query({
    text: `call leasehold.set_bucket_counts(1, 1);
      ${triggers.join('\n')}
      alter table leasehold.outbox alter column bucket set default 0;
      alter table leasehold.webhook_outbox alter column bucket set default 0`,
  })
}

/** Raises the number as `leasehold migrate` does. `gaveWay` resolves when it did so to a transaction that has written. */
export function raise(
  db: Database,
  buckets: number,
): { readonly gaveWay: Promise<void>; readonly raised: Promise<unknown> } {
  let raised: Promise<unknown> = Promise.resolve()
  const gaveWay = new Promise<void>((resolve) => {
    const onEvent = ({ type }: { readonly type: string }): void => {
      if (type === 'migrationGaveWay') resolve()
    }
    raised = migrate(db, { buckets, lockTimeoutMs: 50, onEvent })
  })
  return { gaveWay, raised }
}
