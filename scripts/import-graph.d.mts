export interface Arrow {
  readonly from: string
  readonly to: string
  readonly files: readonly string[]
}
export declare const LAYERS: readonly (readonly string[])[]
export declare function importsBetweenFolders(): Promise<Arrow[]>
export declare function layerOf(folder: string): number
export declare function wrongArrows(arrows: readonly Arrow[]): Arrow[]
export declare function drawGraph(arrows: readonly Arrow[]): string
export declare function cyclesWithin(folder: string): Promise<string[]>
