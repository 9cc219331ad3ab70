// openapi-typescript uses the API of TypeScript 5, and the project is compiled by TypeScript 7, which has none. npm installs
// the older one beside the generator, because this folder is a package of its own.
export { astToString, default as generateTypes } from 'openapi-typescript'
