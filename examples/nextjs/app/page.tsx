import { database } from '../lib/database'

export const dynamic = 'force-dynamic'

interface Order {
  readonly id: string
  readonly item: string
  readonly confirmed_at: Date | null
}

export default async function Page() {
  const text = 'select id, item, confirmed_at from orders order by id desc limit 20'
  const { rows: orders } = await database().query<Order>({ text })
  return (
    <main>
      <h1>Orders</h1>
      <form action="/orders" method="post">
        <input name="item" required aria-label="item" /> <button>Order</button>
      </form>
      <ul>
        {orders.map(({ id, item, confirmed_at }) => (
          <li key={id}>
            {item}: {confirmed_at === null ? 'placed' : 'confirmed'}
          </li>
        ))}
      </ul>
      <a href="/admin/leasehold">Dashboard</a>
    </main>
  )
}
