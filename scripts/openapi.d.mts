export function openApiFiles(document: object): Promise<Record<string, string>>
