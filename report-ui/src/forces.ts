// The force-directed layout, in steps: for the worker, and for the page where no worker can be had.

import {
    forceCollide,
    forceLink,
    forceManyBody,
    forceSimulation,
    forceX,
    forceY,
    type SimulationNodeDatum,
} from "d3-force";

export interface Step {
    x: Float32Array;
    y: Float32Array;
    done: boolean;
}

/** A function that goes on for some milliseconds, and returns where brokers are then. */
export function runForces(n: number, u: number[], v: number[]): (milliseconds: number) => Step {
    const nodes: SimulationNodeDatum[] = Array.from({ length: n }, () => ({}));
    const links = u.map((source, e) => ({ source, target: v[e]! }));
    const simulation = forceSimulation(nodes)
        .force(
            "push",
            forceManyBody()
                .strength(-30)
                .theta(n > 500 ? 1.2 : 0.9),
        )
        .force("pull", forceLink(links).distance(24).iterations(1))
        .force("apart", n > 1000 ? null : forceCollide(5))
        .force("x", forceX(0).strength(0.05))
        .force("y", forceY(0).strength(0.1))
        .alphaDecay(n > 500 ? 0.045 : 0.03)
        .stop();
    return (milliseconds) => {
        const until = performance.now() + milliseconds;
        do simulation.tick();
        while (performance.now() < until && simulation.alpha() > simulation.alphaMin());
        return {
            x: Float32Array.from(nodes, (node) => node.x ?? 0),
            y: Float32Array.from(nodes, (node) => -(node.y ?? 0)),
            done: simulation.alpha() <= simulation.alphaMin() * 5,
        };
    };
}
