// What is drawn at one zoom: brokers that stand close together are one mark, and links between two marks one bundle.
//
// A scene is as detailed as a limit on the number of marks and bundles allows: from every broker and link by itself
// to ever larger cells of the picture. Brokers of one site are in one mark as long as the site is small there.

import type { Graph } from "./graph";
import type { Bounds, Layout } from "./layout";

export const MOST_MARKS = 2100;
const CELLS = [0, 14, 28, 56, 112, 224]; // pixels: the sizes of cells that are tried; 0 is every broker by itself
const FAR_CELL = 40; // units of the layout: the cells of brokers out of view

export interface Bundle {
    a: number;
    b: number;
    /** The number of links in it, one of them, and the sum of what links are drawn by. */
    links: number;
    link: number;
    value: number;
}

export interface Scene {
    /** The mark of each broker. */
    markOf: Int32Array;
    /** Of each mark: its position in the layout, its number of brokers, and one of them. */
    x: Float64Array;
    y: Float64Array;
    size: Int32Array;
    broker: Int32Array;
    /** Whether it is in view. */
    inView: Uint8Array;
    bundles: Bundle[];
    /** Bundles that are left out, the ones with the least value. */
    leftOut: number;
    largest: number;
}

/** Brokers of one site, or at one position. */
interface Group {
    brokers: number[];
    x: number;
    y: number;
    extent: number;
}

/** Finds scenes of one plan in one layout. */
export class SceneFinder {
    private groups: Group[] | null = null;

    constructor(
        private readonly graph: Graph,
        private readonly layout: Layout,
    ) {}

    /** The scene in a view of the layout, at a scale; `step` is the length of steps beside a place, in pixels. */
    find(view: Bounds, scale: number, step: number, values: number[], most = MOST_MARKS): Scene {
        let best: Scene | null = null;
        for (const cell of CELLS) {
            const scene = this.marks(view, scale, step, cell);
            const marks = shownMarks(scene);
            const last = cell === CELLS[CELLS.length - 1];
            if (marks > most && !last) continue;
            if (this.bundle(scene, values, last ? Infinity : most - marks)) {
                best = scene;
                break;
            }
        }
        const { bundles } = best!;
        const allowed = Math.max(0, most - shownMarks(best!));
        if (bundles.length > allowed) {
            bundles.sort((one, other) => other.value - one.value);
            best!.leftOut = bundles.length - allowed;
            bundles.length = allowed;
        }
        best!.largest = bundles.reduce((most_, one) => Math.max(most_, one.value), 0);
        bundles.sort((one, other) => one.value - other.value);
        return best!;
    }

    /** Brokers by site and position; of a layout by forces, which moves, each broker by itself. */
    private grouped(): Group[] {
        if (this.groups && this.layout.kind !== "forces") return this.groups;
        const { x, y } = this.layout;
        const { siteOf, sites } = this.graph.interest;
        const found = new Map<string, number[]>();
        for (let b = 0; b < this.graph.brokerCount; b++) {
            const site = this.layout.kind === "forces" ? "" : sites[siteOf[b] ?? -1];
            const key =
                this.layout.kind === "forces"
                    ? String(b)
                    : site
                      ? `site ${site} ${y[b]! > 500}`
                      : `${x[b]} ${y[b]}`;
            const known = found.get(key);
            if (known) known.push(b);
            else found.set(key, [b]);
        }
        this.groups = [...found.values()].map((brokers) => {
            const [cx, cy] = [x, y].map((at) => brokers.reduce((sum, b) => sum + at[b]!, 0) / brokers.length);
            const extent = brokers.reduce((far, b) => Math.max(far, Math.hypot(x[b]! - cx!, y[b]! - cy!)), 0);
            return { brokers, x: cx!, y: cy!, extent };
        });
        return this.groups;
    }

    private marks(view: Bounds, scale: number, step: number, cell: number): Scene {
        const { layout, graph } = this;
        const n = graph.brokerCount;
        const markOf = new Int32Array(n);
        const [xs, ys, size, first, seen] = [[], [], [], [], []] as number[][];
        const cells = new Map<string, number>();
        const put = (key: string | null, b: number, x: number, y: number, visible: boolean): void => {
            let mark = key === null ? undefined : cells.get(key);
            if (mark === undefined) {
                mark = size!.push(0) - 1;
                xs!.push(0);
                ys!.push(0);
                first!.push(b);
                seen!.push(visible ? 1 : 0);
                if (key !== null) cells.set(key, mark);
            }
            size![mark]!++;
            xs![mark]! += x;
            ys![mark]! += y;
            markOf[b] = mark;
        };
        const unit = cell / scale;
        for (const group of this.grouped()) {
            const reach = group.extent * scale + Math.sqrt(group.brokers.length) * step;
            const together = cell > 0 && group.brokers.length > 1 && reach < Math.max(36, 1.5 * cell);
            for (const b of group.brokers) {
                const x = together ? group.x : layout.x[b]! + (step * layout.dx[b]!) / scale;
                const y = together ? group.y : layout.y[b]! + (step * layout.dy[b]!) / scale;
                const visible = x >= view.left && x <= view.right && y >= view.top && y <= view.bottom;
                if (visible || cell === 0)
                    put(cell ? `${Math.floor(x / unit)} ${Math.floor(y / unit)}` : null, b, x, y, visible);
                else {
                    const far = Math.max(FAR_CELL, unit);
                    put(`far ${Math.floor(x / far)} ${Math.floor(y / far)}`, b, x, y, false);
                }
            }
        }
        return {
            markOf,
            x: Float64Array.from(xs!, (sum, mark) => sum / size![mark]!),
            y: Float64Array.from(ys!, (sum, mark) => sum / size![mark]!),
            size: Int32Array.from(size!),
            broker: Int32Array.from(first!),
            inView: Uint8Array.from(seen!),
            bundles: [],
            leftOut: 0,
            largest: 0,
        };
    }

    /** Put links into bundles; false as soon as there are more than allowed. */
    private bundle(scene: Scene, values: number[], most: number): boolean {
        const { u, v } = this.graph.plan.links;
        const marks = scene.size.length;
        const found = new Map<number, Bundle>();
        for (let e = 0; e < u.length; e++) {
            const [a, b] = [scene.markOf[u[e]!]!, scene.markOf[v[e]!]!];
            if (a === b) continue;
            const key = a < b ? a * marks + b : b * marks + a;
            const known = found.get(key);
            if (known) {
                known.links++;
                known.value += values[e]!;
            } else {
                if (found.size >= most) return false;
                found.set(key, {
                    a: Math.min(a, b),
                    b: Math.max(a, b),
                    links: 1,
                    link: e,
                    value: values[e]!,
                });
            }
        }
        scene.bundles = [...found.values()];
        return true;
    }
}

function shownMarks(scene: Scene): number {
    let n = 0;
    for (const one of scene.inView) n += one;
    return n;
}
