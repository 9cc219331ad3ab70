/** What is wrong with the database, and how to repair it. */
import type { JSX } from 'preact'
import { answer, type Answer, api } from '../api.ts'
import { databaseNow } from '../clock.ts'
import { formatCount } from '../format.ts'
import { useQuery } from '../query.ts'
import { Empty, Problem, Reading } from '../ui/feedback.tsx'
import { Command, State, Time } from '../ui/values.tsx'

type Diagnosis = Answer<'getDoctor'>
type Finding = Diagnosis['findings'][number]
type Check = Diagnosis['checks'][number]

export function DoctorPage(): JSX.Element {
  // An examination reads the catalogs and takes a tenth of a second and more, so it is not repeated by itself.
  const { data, problem, isReading, refresh } = useQuery(
    'doctor',
    async (signal) => {
      const diagnosis = await answer(api.GET('/doctor', { signal }))
      return { diagnosis, at: new Date(databaseNow()).toISOString() }
    },
    { isLive: false },
  )
  return (
    <>
      <header class="page-header">
        <h1>Doctor</h1>
        <button type="button" disabled={isReading} onClick={refresh}>
          {isReading ? 'Examining…' : 'Examine again'}
        </button>
        {data === undefined ? null : (
          <span class="hint">
            examined <Time at={data.at} />
          </span>
        )}
      </header>
      <Problem of={problem} />
      {data === undefined ? problem === undefined ? <Reading /> : null : <Shown of={data.diagnosis} />}
    </>
  )
}

/** Errors before warnings. */
function Shown({ of: { findings, checks } }: { readonly of: Diagnosis }): JSX.Element {
  const sorted = [
    ...findings.filter(({ severity }) => severity === 'error'),
    ...findings.filter(({ severity }) => severity === 'warning'),
  ]
  const isPlain = (check: Check): boolean =>
    check.ok &&
    check.skipped === undefined &&
    check.notSeen === undefined &&
    (check.remarks ?? []).length === 0
  const passed = checks.filter(isPlain)
  const others = checks.filter((check) => !isPlain(check))
  return (
    <>
      {sorted.length === 0 ? (
        <Empty title="Nothing is wrong.">
          <p>
            {formatCount(checks.length)} checks have examined the schema, the settings of PostgreSQL, vacuum,
            the workers and the rows. In a deployment, let this fail where something is wrong:
          </p>
          <Command text="leasehold doctor --fail-on error" />
        </Empty>
      ) : (
        <ol class="findings" aria-label="Findings">
          {sorted.map((finding) => (
            <ShownFinding key={`${finding.check} ${finding.text}`} of={finding} />
          ))}
        </ol>
      )}
      <section class="panel checks" aria-labelledby="checks">
        <h2 id="checks">Checks</h2>
        {others.length === 0 ? null : (
          <ul>
            {others.map((check) => (
              <ShownCheck key={check.id} of={check} />
            ))}
          </ul>
        )}
        {passed.length === 0 ? null : (
          <details>
            <summary>{formatCount(passed.length)} passed</summary>
            <ul>
              {passed.map((check) => (
                <ShownCheck key={check.id} of={check} />
              ))}
            </ul>
          </details>
        )}
      </section>
    </>
  )
}

function ShownFinding({
  of: { check, severity, text, remedy, repair = [] },
}: {
  readonly of: Finding
}): JSX.Element {
  return (
    <li class={`panel ${severity}`} data-check={check}>
      <p>
        <State of={severity} tone={severity === 'error' ? 'bad' : 'warning'} /> <code>{check}</code>
      </p>
      <p>{text}</p>
      <p class="hint">{remedy}</p>
      {repair.map((statement) => (
        <Command key={statement} text={pastable(statement)} />
      ))}
    </li>
  )
}

/** A statement ends as psql needs it; a command of ours is pasted into a shell. */
function pastable(statement: string): string {
  return statement.startsWith('leasehold ') || statement.endsWith(';') ? statement : `${statement};`
}

function ShownCheck({
  of: { id, title, ok, skipped, notSeen, remarks = [] },
}: {
  readonly of: Check
}): JSX.Element {
  const state = skipped !== undefined ? 'skipped' : ok ? 'ok' : 'found'
  return (
    <li data-check={id}>
      <p>
        <State of={state} tone={state === 'ok' ? 'good' : state === 'found' ? 'warning' : 'neutral'} />{' '}
        <code>{id}</code> {title}
      </p>
      {skipped === undefined ? null : <p class="hint">Not examined, because {skipped}.</p>}
      {notSeen === undefined ? null : <p class="hint">This role may not see {notSeen}.</p>}
      {remarks.map((remark) => (
        <p key={remark} class="remark">
          {remark}
        </p>
      ))}
    </li>
  )
}
