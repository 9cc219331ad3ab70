// How far the job is, from SQL: the checkpoints are plain rows.
const PROGRESS = `
select job.state, job.planned_at is not null as planned, job.error_message as error, count(chunk)::int as total,
  count(chunk) filter (where chunk.state = 'COMPLETED')::int as done,
  count(chunk) filter (where chunk.state = 'RUNNING')::int as running,
  coalesce(sum(chunk.row_count) filter (where chunk.state = 'COMPLETED'), 0)::int as rows
from leasehold.sync_job_states as job
left join leasehold.sync_job_chunks as link on link.job_id = job.id
left join leasehold.sync_checkpoint_states as chunk
  on chunk.matrix_id = link.matrix_id and chunk.chunk_hash = link.chunk_hash
where job.id = $1
group by job.state, job.planned_at, job.error_message`

export async function progressOf(db, jobId) {
  const { rows } = await db.query({ text: PROGRESS, values: [jobId] })
  return rows[0]
}

const WIDTH = 32

/** Draws over itself on a terminal; elsewhere each tenth is a line. */
export function progressBar(output, before) {
  const startedAt = performance.now()
  let shown = -1
  return {
    draw({ total, done, running, rows, planned }) {
      const share = total === 0 ? 0 : done / total
      if (!output.isTTY && Math.floor(share * 10) === shown) return
      shown = Math.floor(share * 10)
      const full = Math.round(share * WIDTH)
      const perSecond = (done - before) / ((performance.now() - startedAt) / 1_000)
      const left = perSecond > 0 ? `, ${Math.ceil((total - done) / perSecond)} s left` : ''
      const of = planned ? total : `${total} or more`
      const text = `${'█'.repeat(full)}${'░'.repeat(WIDTH - full)} ${done} of ${of} chunks, ${rows} rows, ${running} in flight${left}`
      output.write(output.isTTY ? `\r\u001B[K${text}` : `${text}\n`)
    },
    end: () => output.isTTY && output.write('\n'),
  }
}
