// The far side: an office of statistics with an API, as many countries have one. It tells in JSON what a matrix consists
// of, and hands out its numbers as CSV, one county and year at a time. It is slow, and always says the same.
import { once } from 'node:events'
import { createServer } from 'node:http'
import { setTimeout as delay } from 'node:timers/promises'

const COUNTIES =
  'Alba Arad Arges Bacau Bihor Botosani Braila Brasov Buzau Calarasi Cluj Constanta Covasna Dolj Galati Giurgiu Gorj Harghita Hunedoara Iasi Ilfov'.split(
    ' ',
  )
const YEARS = Array.from({ length: 10 }, (_, i) => 2015 + i)
const SEXES = ['female', 'male']
const AGES = Array.from({ length: 18 }, (_, i) => `${i * 5}-${i * 5 + 4}`)

export async function openOffice({ answerMs = 80 } = {}) {
  const fetched = new Map()
  const server = createServer((request, response) => void answer(request, response))

  async function answer(request, response) {
    const { pathname, searchParams } = new URL(request.url, 'http://office')
    if (pathname === '/matrices/POP105A') {
      return json(response, { name: 'Population', dimensions: { county: COUNTIES, year: YEARS } })
    }
    if (pathname === '/matrices/POP105A/total') return json(response, { people: total() })
    const [county, year] = [searchParams.get('county'), Number(searchParams.get('year'))]
    if (pathname !== '/matrices/POP105A/data.csv' || !COUNTIES.includes(county) || !YEARS.includes(year)) {
      return response.writeHead(404).end()
    }
    const key = `${county} ${year}`
    fetched.set(key, (fetched.get(key) ?? 0) + 1)
    await delay(answerMs)
    const lines = numbersOf(county, year).map((row) => row.join(','))
    return response
      .writeHead(200, { 'content-type': 'text/csv' })
      .end(`sex,age,people\n${lines.join('\n')}\n`)
  }

  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    /** How often it was asked for numbers. */
    get requests() {
      return [...fetched.values()].reduce((sum, count) => sum + count, 0)
    },
    async close() {
      server.closeAllConnections()
      server.close()
      await once(server, 'close')
    },
  }
}

function json(response, value) {
  response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(value))
}

function numbersOf(county, year) {
  const seed = 7 + COUNTIES.indexOf(county) * 271 + (year - 2_000) * 37
  return SEXES.flatMap((sex, s) =>
    AGES.map((age, a) => [sex, age, 2_000 + ((seed * (a + 3) * (s + 2)) % 7_919)]),
  )
}

function total() {
  const rows = COUNTIES.flatMap((county) => YEARS.flatMap((year) => numbersOf(county, year)))
  return rows.reduce((sum, [, , people]) => sum + people, 0)
}
