// The worker of the force-directed layout: gets the links once, and sends positions until they rest.

import { runForces } from "./forces";

interface Scope {
    onmessage: ((event: MessageEvent<{ n: number; u: number[]; v: number[] }>) => void) | null;
    postMessage(message: unknown): void;
}

const scope = globalThis as unknown as Scope;

scope.onmessage = ({ data }) => {
    const simulation = runForces(data.n, data.u, data.v);
    for (let done = false; !done;) {
        const step = simulation(150);
        scope.postMessage(step);
        done = step.done;
    }
};
