// The layout's worker: its script stands in this one as text, because the page is a single file.

declare const WORKER_SCRIPT: string; // the build puts the bundle of force_worker.ts here

/** A worker, or null where the browser allows none. */
export function startWorker(): Worker | null {
    try {
        return new Worker(URL.createObjectURL(new Blob([WORKER_SCRIPT], { type: "text/javascript" })));
    } catch {
        return null;
    }
}
