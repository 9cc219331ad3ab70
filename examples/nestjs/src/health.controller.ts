import { Controller, Get } from '@nestjs/common'
import { HealthCheck, type HealthCheckResult, HealthCheckService } from '@nestjs/terminus'
import { LeaseholdHealthIndicator } from 'leasehold/nestjs'

// begin
@Controller('health')
export class HealthController {
  constructor(
    private readonly health: HealthCheckService,
    private readonly leasehold: LeaseholdHealthIndicator,
  ) {}

  @Get()
  @HealthCheck()
  async check(): Promise<HealthCheckResult> {
    return this.health.check([async () => this.leasehold.isHealthy('leasehold')])
  }
}
// end
