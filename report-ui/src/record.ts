// The record that the page shows, as broadloom/report/report_record.py writes it.

export interface Certificate {
    total: number | null;
    bound: number | null;
    gap: number | null;
    words: string;
}

export interface Places {
    kind: "map" | "plane" | "none";
    x?: (number | null)[];
    y?: (number | null)[];
}

export interface InterestRecord {
    brokers: string[];
    sites: string[];
    siteOf: number[];
    places: Places;
    topics: string[];
    start: number[];
    members: number[];
    topicsInAll: number;
    subscriptionsInAll: number;
}

interface PlanRecord {
    name: string;
    summary: string;
    /** The folder that the plan was read from, and when it was written; null for a plan in memory. */
    source: string | null;
    written: string | null;
    asked: Record<string, unknown>;
    metrics: Record<string, unknown>;
    certificate: Certificate;
}

export interface NotCarried {
    subscriptions: { node: string; topic: string; reason: string }[];
    publications: { node: string; filters: string[]; carried: string[] }[];
}

/** The weight of any pair of brokers; null where a page cannot hold it. */
export type WeightsRecord =
    | { kind: "uniform" }
    | { kind: "euclidean"; points: number[][] }
    | { kind: "sites"; site: number[]; table: number[][]; inner: number; outer: number }
    | { kind: "dense"; rows: number[][] };

export interface OverlayRecord extends PlanRecord {
    kind: "overlay";
    interest: number;
    notCarried: NotCarried;
    weighted: boolean;
    weights: WeightsRecord | null;
    links: { u: number[]; v: number[]; weight: number[]; load: number[]; holds: number[] };
    load: number[];
    holds: number[];
    topics: { hops: (number | null)[]; length: (number | null)[]; cost: (number | null)[]; exact: boolean };
    backups: number[][] | null;
    failures: { brokers: number[]; added: [number, number][][] } | null;
    siteFailures: { sites: number[]; added: [number, number][][] } | null;
}

export interface ContentRecord extends PlanRecord {
    kind: "content";
    brokers: string[];
    parent: number[];
    leaves: number[];
    load: number[];
    fairLoad: number[];
    beta: number;
    betaMax: number;
    dimensions: number;
    filters: [number[], number[]][][];
    subscriptions: { lo: number[][]; hi: number[][]; broker: number[]; inAll: number };
    delays: { counts: number[]; edges: number[]; over: number; limit: number; absolute: boolean };
}

export interface MarketRecord extends PlanRecord {
    kind: "market";
    brokers: string[];
    load: number[];
    flows: { u: number[]; v: number[]; rate: number[] };
}

export type AnyPlan = OverlayRecord | ContentRecord | MarketRecord;

export interface Account {
    table: string;
    rows: number;
    used: number;
    duplicates: number;
    quarantined: Record<string, number>;
    written: number;
}

export interface Rows {
    words: string;
    tables: Account[];
    notes: string[];
    examples: { table: string; reason: string; row: string }[];
}

export interface Report {
    format: number;
    broadloom: string;
    title: string;
    /** The unit of weights, as "ms"; empty where it is not known. */
    unit: string;
    interests: InterestRecord[];
    plans: AnyPlan[];
    rows: Rows | null;
}
