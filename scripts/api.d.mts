export declare function apiReport(): Promise<string>
