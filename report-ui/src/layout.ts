// Where brokers are drawn, before the zoom: a box of 1000 by 500, and for brokers at one place a spiral around it.

import {
    forceCollide,
    forceLink,
    forceManyBody,
    forceSimulation,
    forceX,
    forceY,
    type SimulationNodeDatum,
} from "d3-force";
import {
    geoNaturalEarth1,
    geoPath,
    type GeoPath,
    type GeoPermissibleObjects,
    type GeoProjection,
} from "d3-geo";
import { feature } from "topojson-client";
import type { Topology } from "topojson-specification";
import world from "world-atlas/land-110m.json";
import type { Graph } from "./graph";

export const WIDTH = 1000;
export const HEIGHT = 500;
const GOLDEN = Math.PI * (3 - Math.sqrt(5));

export interface Layout {
    kind: "map" | "plane" | "forces";
    /** Where a broker's place is. */
    x: Float64Array;
    y: Float64Array;
    /** How far beside it the broker is drawn, in steps whose length grows slowly with the zoom. */
    dx: Float64Array;
    dy: Float64Array;
    /** How many brokers have no place of their own, and are drawn below the map. */
    homeless: number;
}

export const projection: GeoProjection = geoNaturalEarth1().fitExtent(
    [
        [0, 0],
        [WIDTH, HEIGHT],
    ],
    {
        type: "MultiPoint",
        coordinates: [
            [-168, 0],
            [179, 0],
            [0, 78],
            [0, -56],
        ],
    }, // where people live
);

const land = feature(world as unknown as Topology, "land") as GeoPermissibleObjects;

/** Draw the outline of the world; the context has the zoom already. */
export function drawWorld(
    context: CanvasRenderingContext2D,
    sea: string,
    ground: string,
    line: string,
    scale: number,
): void {
    const path: GeoPath = geoPath(projection, context);
    context.beginPath();
    path({ type: "Sphere" } as GeoPermissibleObjects);
    context.fillStyle = sea;
    context.fill();
    context.beginPath();
    path(land);
    context.fillStyle = ground;
    context.fill();
    context.lineWidth = 0.5 / scale;
    context.strokeStyle = line;
    context.stroke();
}

function empty(n: number, kind: Layout["kind"]): Layout {
    const [x, y, dx, dy] = [0, 0, 0, 0].map(() => new Float64Array(n)) as [
        Float64Array,
        Float64Array,
        Float64Array,
        Float64Array,
    ];
    return { kind, x, y, dx, dy, homeless: 0 };
}

/** Brokers at their known places, or null where none is known. */
export function placed(graph: Graph): Layout | null {
    const { places } = graph.interest;
    if (places.kind === "map") return onMap(graph, places.x!, places.y!);
    if (places.kind === "plane")
        return onPlane(graph.brokerCount, places.x as number[], places.y as number[]);
    return null;
}

function onMap(graph: Graph, longitude: (number | null)[], latitude: (number | null)[]): Layout {
    const layout = empty(graph.brokerCount, "map");
    const together = new Map<string, number>();
    const homeless: number[] = [];
    for (let b = 0; b < graph.brokerCount; b++) {
        const [east, north] = [longitude[b], latitude[b]];
        if (east === null || east === undefined || north === null || north === undefined) {
            homeless.push(b);
            continue;
        }
        [layout.x[b], layout.y[b]] = projection([east, north])!;
        const key = `${east} ${north}`;
        const i = together.get(key) ?? 0;
        together.set(key, i + 1);
        layout.dx[b] = Math.sqrt(i) * Math.cos(i * GOLDEN);
        layout.dy[b] = Math.sqrt(i) * Math.sin(i * GOLDEN);
    }
    homeless.forEach((b, i) => {
        layout.x[b] = (WIDTH * (i + 0.5)) / homeless.length;
        layout.y[b] = HEIGHT + 15;
    });
    return { ...layout, homeless: homeless.length };
}

function onPlane(n: number, x: number[], y: number[]): Layout {
    const layout = empty(n, "plane");
    const [left, right, low, high] = [min(x), max(x), min(y), max(y)];
    const scale = 0.94 * Math.min(WIDTH / (right - left || 1), HEIGHT / (high - low || 1));
    for (let b = 0; b < n; b++) {
        layout.x[b] = WIDTH / 2 + scale * (x[b]! - (left + right) / 2);
        layout.y[b] = HEIGHT / 2 - scale * (y[b]! - (low + high) / 2);
    }
    return layout;
}

const min = (values: number[]): number => values.reduce((a, b) => Math.min(a, b), Infinity);
const max = (values: number[]): number => values.reduce((a, b) => Math.max(a, b), -Infinity);

/** Brokers where forces put them: links pull, brokers push. Goes on between frames and tells of each step. */
export function byForces(graph: Graph, step: (done: boolean) => void): Layout {
    const n = graph.brokerCount;
    const layout = empty(n, "forces");
    const nodes: SimulationNodeDatum[] = Array.from({ length: n }, () => ({}));
    const links = graph.plan.links.u.map((u, e) => ({ source: u, target: graph.plan.links.v[e]! }));
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
    const copy = (): void => {
        const xs = nodes.map((node) => node.x ?? 0);
        const ys = nodes.map((node) => -(node.y ?? 0));
        const fitted = onPlane(n, xs, ys);
        layout.x.set(fitted.x);
        layout.y.set(fitted.y);
    };
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const frame = (): void => {
        const until = performance.now() + 12;
        do simulation.tick();
        while (performance.now() < until && simulation.alpha() > simulation.alphaMin());
        const done = simulation.alpha() <= simulation.alphaMin() * 5;
        if (done || !still) {
            copy();
            step(done);
        }
        if (!done) requestAnimationFrame(frame);
    };
    copy();
    if (n) requestAnimationFrame(frame);
    return layout;
}
