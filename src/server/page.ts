const STYLE = 'body{font:16px/1.5 system-ui,sans-serif;max-width:42rem;margin:3rem auto;padding:0 1rem}'

/** What a person sees who opens the address: what this is, and where to look. There is no dashboard yet. */
export function startPage(version: string, hasMetrics: boolean): string {
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Leasehold ${version}</title>
<style>${STYLE}</style>
</head>
<body>
<h1>Leasehold ${version}</h1>
<p>Time-bounded, fenced leases on the rows of any PostgreSQL table. This process is running.
There is no dashboard yet.</p>
<ul>
<li><a href="/readyz?verbose">/readyz?verbose</a>: whether the database answers and is up to date, and the workers run</li>
<li><a href="/livez">/livez</a>: whether this process answers</li>
${hasMetrics ? '<li><a href="/metrics">/metrics</a>: what it has done, for Prometheus</li>' : ''}
</ul>
</body>
</html>
`
}
