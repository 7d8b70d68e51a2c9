// Where brokers are drawn, before the zoom: a box of 1000 by 500, and for brokers at one place a spiral around it.

import {
    geoInterpolate,
    geoNaturalEarth1,
    geoPath,
    type GeoContext,
    type GeoPermissibleObjects,
    type GeoProjection,
} from "d3-geo";
import { feature } from "topojson-client";
import type { Topology } from "topojson-specification";
import world from "world-atlas/land-110m.json";
import { runForces } from "./forces";
import type { Graph } from "./graph";
import { startWorker } from "./worker_source";

export const WIDTH = 1000;
export const HEIGHT = 500;
/** Where brokers without a position are drawn: a box below the map. */
export const BOX = { top: HEIGHT + 18, row: 14, left: 20, width: WIDTH - 40 };
const GOLDEN = Math.PI * (3 - Math.sqrt(5));
const MOST_CIRCLES = 10_000; // great circles that are kept
const MOST_ARCS = 3000; // links whose paths count for what fits into view

export interface Layout {
    kind: "map" | "plane" | "forces";
    /** Where a broker's place is. */
    x: Float64Array;
    y: Float64Array;
    /** How far beside it the broker is drawn, in steps whose length grows slowly with the zoom. */
    dx: Float64Array;
    dy: Float64Array;
    /** How many brokers have no position, and are drawn below the map. */
    homeless: number;
}

export interface Bounds {
    left: number;
    right: number;
    top: number;
    bottom: number;
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

export interface WorldColours {
    sea: string;
    ground: string;
    coast: string;
}

const sphere = { type: "Sphere" } as GeoPermissibleObjects;
const outlines = new Map<GeoPermissibleObjects, Path2D>();

/** Draw the outline of the world without Antarctica; the context has the zoom already. */
export function drawWorld(context: CanvasRenderingContext2D, colours: WorldColours, scale: number): void {
    context.save();
    context.beginPath();
    context.rect(-WIDTH, -HEIGHT, 3 * WIDTH, 2 * HEIGHT);
    context.clip();
    context.fillStyle = colours.sea;
    shape(context, sphere);
    context.fillStyle = colours.ground;
    context.lineWidth = 0.5 / scale;
    context.strokeStyle = colours.coast;
    shape(context, land, true);
    context.restore();
}

/** Fill an area; a canvas keeps its outline, since projecting it takes long. */
function shape(context: CanvasRenderingContext2D, area: GeoPermissibleObjects, line = false): void {
    if (!(context instanceof CanvasRenderingContext2D)) {
        (context as CanvasRenderingContext2D).beginPath();
        geoPath(projection, context as GeoContext)(area);
        (context as CanvasRenderingContext2D).fill();
        if (line) (context as CanvasRenderingContext2D).stroke();
        return;
    }
    let outline = outlines.get(area);
    if (!outline) {
        outline = new Path2D();
        geoPath(projection, outline as unknown as GeoContext)(area);
        outlines.set(area, outline);
    }
    context.fill(outline);
    if (line) context.stroke(outline);
}

const circles = new Map<string, number[][]>();

/** The great circle between two points of the map, in pieces: one more where it crosses the edge of the map. */
export function greatCircle(ax: number, ay: number, bx: number, by: number): number[][] {
    const key = `${ax} ${ay} ${bx} ${by}`;
    const known = circles.get(key);
    if (known) return known;
    if (circles.size > MOST_CIRCLES) circles.clear();
    const found = computeCircle(ax, ay, bx, by);
    circles.set(key, found);
    return found;
}

function computeCircle(ax: number, ay: number, bx: number, by: number): number[][] {
    const [from, to] = [projection.invert!([ax, ay]), projection.invert!([bx, by])];
    if (!from || !to || ![...from, ...to].every(Number.isFinite)) return [[ax, ay, bx, by]];
    const between = geoInterpolate(from, to);
    const steps = Math.max(2, Math.ceil((between as unknown as { distance: number }).distance / 0.07));
    const pieces = [[ax, ay]];
    let before = from;
    for (let i = 1; i <= steps; i++) {
        const now = i === steps ? to : between(i / steps);
        if (Math.abs(now[0] - before[0]) > 180) {
            const side = before[0] > 0 ? 180 : -180;
            const left = Math.abs(side - before[0]);
            const share = left / (left + Math.abs(-side - now[0]) || 1);
            const latitude = before[1] + share * (now[1] - before[1]);
            pieces[pieces.length - 1]!.push(...projection([side * 0.99999, latitude])!);
            pieces.push([...projection([-side * 0.99999, latitude])!]);
        }
        pieces[pieces.length - 1]!.push(...(i === steps ? [bx, by] : projection(now)!));
        before = now;
    }
    return pieces;
}

function empty(n: number, kind: Layout["kind"]): Layout {
    const arrays = Array.from({ length: 4 }, () => new Float64Array(n));
    return { kind, x: arrays[0]!, y: arrays[1]!, dx: arrays[2]!, dy: arrays[3]!, homeless: 0 };
}

/** Brokers at their known places, or null where none is known. All plans of a page share one scale. */
export function placed(graph: Graph, all: Graph[]): Layout | null {
    const { places } = graph.interest;
    if (places.kind === "map") return onMap(graph, places.x!, places.y!);
    if (places.kind !== "plane") return null;
    const alike = all.filter((one) => one.interest.places.kind === "plane");
    const every = (axis: "x" | "y"): number[] =>
        alike.flatMap((one) => one.interest.places[axis] as number[]);
    return onPlane(
        graph.brokerCount,
        places.x as number[],
        places.y as number[],
        extent(every("x"), every("y")),
    );
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
    const perRow = Math.max(1, Math.min(homeless.length, 60));
    homeless.forEach((b, i) => {
        layout.x[b] = BOX.left + (BOX.width * ((i % perRow) + 0.5)) / perRow;
        layout.y[b] = BOX.top + BOX.row * (Math.min(11, Math.floor(i / perRow)) + 1);
    });
    return { ...layout, homeless: homeless.length };
}

/** The height of the box of brokers without a position. */
export const boxHeight = (homeless: number): number =>
    homeless ? BOX.row * (Math.min(12, Math.ceil(homeless / 60)) + 1) : 0;

function extent(x: ArrayLike<number>, y: ArrayLike<number>): Bounds {
    const bounds = { left: Infinity, right: -Infinity, top: Infinity, bottom: -Infinity };
    for (let i = 0; i < x.length; i++) include(bounds, x[i]!, y[i]!);
    return x.length ? bounds : { left: 0, right: 0, top: 0, bottom: 0 };
}

export function include(bounds: Bounds, x: number, y: number): void {
    bounds.left = Math.min(bounds.left, x);
    bounds.right = Math.max(bounds.right, x);
    bounds.top = Math.min(bounds.top, y);
    bounds.bottom = Math.max(bounds.bottom, y);
}

function onPlane(n: number, x: ArrayLike<number>, y: ArrayLike<number>, all: Bounds): Layout {
    const layout = empty(n, "plane");
    const scale = 0.94 * Math.min(WIDTH / (all.right - all.left || 1), HEIGHT / (all.bottom - all.top || 1));
    for (let b = 0; b < n; b++) {
        layout.x[b] = WIDTH / 2 + scale * (x[b]! - (all.left + all.right) / 2);
        layout.y[b] = HEIGHT / 2 - scale * (y[b]! - (all.top + all.bottom) / 2);
    }
    return layout;
}

/** What is to be seen of brokers: the smallest box around them, with the paths of links among all of them. */
export function boundsOf(layout: Layout, brokers: number[] | null, graph: Graph): Bounds {
    const { x, y } = layout;
    const bounds = brokers
        ? extent(
              brokers.map((b) => x[b]!),
              brokers.map((b) => y[b]!),
          )
        : extent(x, y);
    if (layout.kind === "map" && brokers === null) {
        const step = Math.max(1, Math.ceil(graph.linkCount / MOST_ARCS));
        const seen = new Set<string>();
        for (let e = 0; e < graph.linkCount; e += step) {
            const [u, v] = graph.ends(e);
            const key = [x[u], y[u], x[v], y[v]].join();
            if (seen.has(key) || Math.max(y[u]!, y[v]!) > HEIGHT) continue;
            seen.add(key);
            for (const piece of greatCircle(x[u]!, y[u]!, x[v]!, y[v]!))
                for (let i = 0; i < piece.length; i += 2) include(bounds, piece[i]!, piece[i + 1]!);
        }
    }
    if (layout.homeless && brokers === null) {
        include(bounds, BOX.left, BOX.top);
        include(bounds, BOX.left + BOX.width, BOX.top + boxHeight(layout.homeless));
    }
    return bounds;
}

/** Brokers where forces put them: links pull, brokers push. A worker computes them and tells of its steps. */
export function byForces(graph: Graph, step: (done: boolean) => void): Layout {
    const n = graph.brokerCount;
    const layout = empty(n, "forces");
    const { u, v } = graph.plan.links;
    const take = (xs: Float32Array, ys: Float32Array): void => {
        const fitted = onPlane(n, xs, ys, extent(xs, ys));
        layout.x.set(fitted.x);
        layout.y.set(fitted.y);
    };
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const told = (xs: Float32Array, ys: Float32Array, done: boolean): void => {
        if (still && !done) return;
        take(xs, ys);
        step(done);
    };
    const circle = Float32Array.from({ length: n }, (_, i) => Math.sqrt(i) * Math.cos(i * GOLDEN));
    take(
        circle,
        Float32Array.from({ length: n }, (_, i) => Math.sqrt(i) * Math.sin(i * GOLDEN)),
    );
    if (!n) return layout;
    const worker = startWorker();
    if (worker === null) {
        const simulation = runForces(n, u, v);
        const frame = (): void => {
            const { x, y, done } = simulation(12);
            told(x, y, done);
            if (!done) requestAnimationFrame(frame);
        };
        requestAnimationFrame(frame);
        return layout;
    }
    worker.onmessage = (event: MessageEvent<{ x: Float32Array; y: Float32Array; done: boolean }>) => {
        told(event.data.x, event.data.y, event.data.done);
        if (event.data.done) worker.terminate();
    };
    worker.postMessage({ n, u, v });
    return layout;
}
