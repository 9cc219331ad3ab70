-- The progress of each open job.
select j.id, j.matrix_id, j.planned_at is not null as planned, count(c) as chunks,
  count(c) filter (where c.state = 'COMPLETED') as completed,
  count(c) filter (where c.state = 'RUNNING') as running,
  count(c) filter (where c.state = 'FAILED') as failed
from leasehold.sync_job_states as j
left join leasehold.sync_job_chunks as l on l.job_id = j.id
left join leasehold.sync_checkpoint_states as c on c.matrix_id = l.matrix_id and c.chunk_hash = l.chunk_hash
where j.state not in ('COMPLETED', 'FAILED')
group by j.id, j.matrix_id, j.planned_at
order by j.id;
