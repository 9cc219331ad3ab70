import { NestFactory } from '@nestjs/core'
import { AppModule } from './app.module.ts'

// begin
const app = await NestFactory.create(AppModule)
// A signal then stops the workers in order: running handlers end, and the other events are released.
app.enableShutdownHooks([], { useProcessExit: true })
await app.listen(Number(process.env['PORT'] ?? '3000'), '127.0.0.1')
// end
process.stdout.write(`listening on ${await app.getUrl()}\n`)
