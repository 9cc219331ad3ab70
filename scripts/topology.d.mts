/** One kind of process of the deployment. */
export interface Service {
  readonly name: string
  readonly command: readonly string[]
  /** It runs to its end, before the others start. */
  readonly once?: boolean
  /** Without it, it runs as the owner of the tables. */
  readonly role?: { readonly name: string; readonly password: string }
  /** The names of its variables, besides DATABASE_URL. */
  readonly environment: readonly string[]
  readonly replicas?: { readonly variable: string; readonly byDefault: number }
  /** None: it always runs. */
  readonly profiles: readonly string[]
}

export const SERVICES: readonly Service[]
export function chosen(profiles: readonly string[]): readonly Service[]
export function argumentsOf(command: readonly string[]): readonly string[]
export function environmentOf(
  service: Service,
  values: Readonly<Record<string, string | undefined>>,
): Readonly<Record<string, string>>
