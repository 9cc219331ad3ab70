import { openDatabase } from 'leasehold'
import { populationSync } from './population.mjs'

const { DATABASE_URL, OFFICE_URL } = process.env
const db = openDatabase({ url: DATABASE_URL })
const { sync } = populationSync({ db, officeUrl: OFFICE_URL, perSecond: 10 })

export default { workers: [...sync.runner()] }
