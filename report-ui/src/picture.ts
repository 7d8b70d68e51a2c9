// The picture of an overlay: the world, bundles of links and marks of brokers, and on top of them what stands out.

import type { ZoomTransform } from "d3-zoom";
import { num } from "./dom";
import type { Graph } from "./graph";
import type { Dots, Highlight, Strokes } from "./highlight";
import { BOX, boxHeight, drawWorld, greatCircle, HEIGHT, type Layout } from "./layout";
import type { Bundle, Scene } from "./scene";
import { colours, type Colours } from "./theme";

const REACH = 12; // pixels between the pointer and the mark that it means
const LINE_REACH = 6; // and the link
const SHORT = 14; // pixels: lines on the map that are no longer are straight
const FONT = "system-ui, sans-serif";

/** Where a picture is drawn, and which part of the plan it shows. */
export interface Frame {
    context: CanvasRenderingContext2D;
    transform: ZoomTransform;
    width: number;
    height: number;
}

interface Line {
    bundle: Bundle;
    pieces: number[][];
}

export class Painter {
    private frame!: Frame;
    private layout!: Layout;
    private scene!: Scene;
    private lines: Line[] = [];

    constructor(private readonly graph: Graph) {}

    /** How far apart brokers at one place are drawn, in pixels. */
    stepAt(scale: number): number {
        return this.crowded * Math.min(10, 2.8 * Math.sqrt(Math.max(1, scale)));
    }

    /** Everything, without what stands out. */
    paintBase(frame: Frame, layout: Layout, scene: Scene): void {
        const { context, transform } = frame;
        const palette = colours();
        [this.frame, this.layout, this.scene] = [frame, layout, scene];
        context.fillStyle = palette.paper;
        context.fillRect(0, 0, frame.width, frame.height);
        if (layout.kind === "map") {
            context.save();
            context.translate(transform.x, transform.y);
            context.scale(transform.k, transform.k);
            drawWorld(context, palette, transform.k);
            context.restore();
            if (layout.homeless) this.drawBox(context, palette);
        }
        this.drawBundles(context, palette);
        this.drawMarks(context, palette);
        this.drawSites(context, palette);
    }

    /** What stands out, over a veil on everything else; `ghosts` are the positions of brokers of another plan. */
    paintOver(frame: Frame, standing: Highlight, ghosts: [number, number][]): void {
        const { context } = frame;
        const palette = colours();
        const before = this.frame;
        this.frame = frame;
        context.globalAlpha = 0.78;
        context.fillStyle = palette.paper;
        context.fillRect(0, 0, frame.width, frame.height);
        context.globalAlpha = 1;
        for (const strokes of standing.strokes) this.drawStrokes(context, palette, strokes, ghosts);
        for (const dots of standing.dots) this.drawDots(context, palette, dots, standing, ghosts);
        this.frame = before;
    }

    /** The mark that a point in the picture means, or -1. */
    markAt(x: number, y: number): number {
        let [best, distance] = [-1, 1];
        for (let mark = 0; mark < this.scene.size.length; mark++) {
            const [mx, my] = this.onScreen(this.scene.x[mark]!, this.scene.y[mark]!);
            const d = Math.hypot(mx - x, my - y) / Math.max(REACH, this.radius(mark) + 2);
            if (d < distance) [best, distance] = [mark, d];
        }
        return best;
    }

    /** The bundle of links that a point in the picture means, or null. */
    bundleAt(x: number, y: number): Bundle | null {
        let [best, distance] = [null as Bundle | null, LINE_REACH];
        for (const { bundle, pieces } of this.lines)
            for (const piece of pieces)
                for (let i = 2; i < piece.length; i += 2) {
                    const d = segmentDistance(x, y, piece[i - 2]!, piece[i - 1]!, piece[i]!, piece[i + 1]!);
                    if (d < distance) [best, distance] = [bundle, d];
                }
        return best;
    }

    private onScreen(x: number, y: number): [number, number] {
        const { k, x: left, y: top } = this.frame.transform;
        return [x * k + left, y * k + top];
    }

    /** The line between two points of the layout: on the map, a part of a great circle. */
    private lineBetween(ax: number, ay: number, bx: number, by: number): number[][] {
        const [from, to] = [this.onScreen(ax, ay), this.onScreen(bx, by)];
        const straight =
            this.layout.kind !== "map" ||
            Math.hypot(from[0] - to[0], from[1] - to[1]) < SHORT ||
            Math.max(ay, by) > HEIGHT;
        if (straight) return [[...from, ...to]];
        const { k, x, y } = this.frame.transform;
        return greatCircle(ax, ay, bx, by).map((piece) => piece.map((at, i) => at * k + (i % 2 ? y : x)));
    }

    private drawBundles(context: CanvasRenderingContext2D, palette: Colours): void {
        const { bundles, largest, x, y } = this.scene;
        const crowd = Math.min(1, Math.sqrt(700 / Math.max(1, bundles.length)));
        const groups = new Map<number, Line[]>();
        this.lines = bundles.map((bundle) => ({
            bundle,
            pieces: this.lineBetween(x[bundle.a]!, y[bundle.a]!, x[bundle.b]!, y[bundle.b]!),
        }));
        for (const line of this.lines) {
            const much = Math.min(9, Math.floor(10 * Math.sqrt(line.bundle.value / (largest || 1))));
            (groups.get(much) ?? groups.set(much, []).get(much)!).push(line);
        }
        context.strokeStyle = palette.link;
        for (const [group, lines] of groups) {
            const much = (group + 0.5) / 10;
            context.globalAlpha = (0.18 + 0.7 * much) * (crowd + (1 - crowd) * much * much);
            context.lineWidth = 0.5 + 2.5 * much * much;
            for (let from = 0; from < lines.length; from += 100) {
                context.beginPath();
                for (const { pieces } of lines.slice(from, from + 100)) trace(context, pieces);
                context.stroke();
            }
        }
        context.globalAlpha = 1;
    }

    private drawStrokes(
        context: CanvasRenderingContext2D,
        palette: Colours,
        strokes: Strokes,
        ghosts: [number, number][],
    ): void {
        const seen = new Set<number>();
        const { markOf, x, y } = this.scene;
        const n = this.graph.brokerCount;
        const places = x.length + ghosts.length;
        const placeOf = (b: number): number => (b < n ? markOf[b]! : x.length + b - n);
        const [xs, ys] = [
            (p: number) => x[p] ?? ghosts[p - x.length]![0],
            (p: number) => y[p] ?? ghosts[p - x.length]![1],
        ];
        context.strokeStyle = palette[strokes.colour];
        context.lineWidth = strokes.width;
        context.setLineDash(strokes.dash ?? []);
        context.beginPath();
        for (const [u, v] of strokes.pairs) {
            const a = placeOf(u);
            const b = placeOf(v);
            const key = a < b ? a * places + b : b * places + a;
            if (a === b || seen.has(key)) continue;
            seen.add(key);
            trace(context, this.lineBetween(xs(a), ys(a), xs(b), ys(b)));
        }
        context.globalAlpha = seen.size > 400 ? 0.6 : 0.95;
        context.stroke();
        context.setLineDash([]);
        context.globalAlpha = 1;
    }

    /** Where a broker is drawn: at its mark, or where another plan has it. */
    private placeOf(broker: number, ghosts: [number, number][]): Place {
        const ghost = broker - this.graph.brokerCount;
        if (ghost >= 0) return { key: -1 - ghost, x: ghosts[ghost]![0], y: ghosts[ghost]![1] };
        const mark = this.scene.markOf[broker]!;
        return { key: mark, x: this.scene.x[mark]!, y: this.scene.y[mark]! };
    }

    /** By how much dots and the room between them shrink where there are many. */
    private get crowded(): number {
        return Math.max(0.6, Math.min(1, (400 / this.graph.brokerCount) ** 0.25));
    }

    private radius(mark: number): number {
        const { size, broker } = this.scene;
        if (size[mark]! > 1) return Math.min(12, 4 + 0.9 * Math.sqrt(size[mark]!));
        const grown = Math.min(2, Math.max(1, this.frame.transform.k ** 0.35));
        return this.crowded * grown * Math.min(6, 1.1 + 0.35 * Math.sqrt(this.graph.degree(broker[mark]!)));
    }

    private drawMarks(context: CanvasRenderingContext2D, palette: Colours): void {
        const { size, x, y, inView } = this.scene;
        for (let mark = 0; mark < size.length; mark++) {
            if (!inView[mark]) continue;
            const [mx, my] = this.onScreen(x[mark]!, y[mark]!);
            this.drawMark(context, palette, mark, mx, my, this.radius(mark), "broker");
        }
    }

    private drawMark(
        context: CanvasRenderingContext2D,
        palette: Colours,
        mark: number,
        x: number,
        y: number,
        r: number,
        colour: keyof Colours,
    ): void {
        context.beginPath();
        context.arc(x, y, r, 0, 2 * Math.PI);
        context.fillStyle = palette[colour];
        context.fill();
        context.strokeStyle = palette.paper;
        context.lineWidth = 0.75;
        context.stroke();
        const size = mark < 0 ? 1 : this.scene.size[mark]!;
        if (size < 2 || r < 8) return;
        context.fillStyle = palette.paper;
        context.font = `600 ${r < 12 ? 9 : 10}px ${FONT}`;
        context.textAlign = "center";
        context.textBaseline = "middle";
        context.fillText(size > 999 ? `${num(Math.round(size / 100) / 10)}k` : String(size), x, y);
        context.textAlign = "start";
    }

    private drawDots(
        context: CanvasRenderingContext2D,
        palette: Colours,
        dots: Dots,
        standing: Highlight,
        ghosts: [number, number][],
    ): void {
        const seen = new Set<number>();
        for (const b of dots.brokers) {
            if (b < this.graph.brokerCount && seen.has(this.scene.markOf[b]!)) continue;
            const place = this.placeOf(b, ghosts);
            seen.add(place.key);
            const [x, y] = this.onScreen(place.x, place.y);
            const r = (place.key < 0 ? 4 : this.radius(place.key)) + (dots.labels ? 2.5 : 0.8);
            this.drawMark(context, palette, place.key, x, y, r, dots.colour);
            if (dots.crossed) this.drawCross(context, palette, x, y, r + 4);
            const name =
                b < this.graph.brokerCount
                    ? this.graph.interest.brokers[b]!
                    : standing.ghosts[b - this.graph.brokerCount]!.name;
            if (dots.labels) this.drawText(context, palette, name, x + r + 5, y, `600 13px ${FONT}`);
        }
    }

    private drawCross(
        context: CanvasRenderingContext2D,
        palette: Colours,
        x: number,
        y: number,
        r: number,
    ): void {
        context.beginPath();
        context.moveTo(x - r, y - r);
        context.lineTo(x + r, y + r);
        context.moveTo(x - r, y + r);
        context.lineTo(x + r, y - r);
        context.strokeStyle = palette.bad;
        context.lineWidth = 2;
        context.stroke();
    }

    /** The box of brokers without a position. */
    private drawBox(context: CanvasRenderingContext2D, palette: Colours): void {
        const { k } = this.frame.transform;
        const [x, y] = this.onScreen(BOX.left, BOX.top);
        const [width, height] = [BOX.width * k, boxHeight(this.layout.homeless) * k];
        context.beginPath();
        context.rect(x, y, width, height);
        context.fillStyle = palette.sea;
        context.fill();
        context.strokeStyle = palette.coast;
        context.lineWidth = 1;
        context.stroke();
        this.drawText(
            context,
            { ...palette, ink: palette.quiet },
            `No position: ${num(this.layout.homeless)}`,
            x + 4,
            y - 7,
            `11px ${FONT}`,
        );
    }

    private drawText(
        context: CanvasRenderingContext2D,
        palette: Colours,
        text: string,
        x: number,
        y: number,
        font: string,
    ): void {
        context.font = font;
        context.textBaseline = "middle";
        const shown = text.length > 40 ? `${text.slice(0, 39)}…` : text;
        const left =
            x + context.measureText(shown).width > this.frame.width
                ? x - context.measureText(shown).width - 20
                : x;
        context.lineWidth = 3;
        context.lineJoin = "round";
        context.strokeStyle = palette.paper;
        context.strokeText(shown, left, y);
        context.fillStyle = palette.ink;
        context.fillText(shown, left, y);
    }

    /** Names of sites, the largest first, where no other name is. */
    private drawSites(context: CanvasRenderingContext2D, palette: Colours): void {
        if (this.layout.kind === "forces") return;
        const { siteOf, sites } = this.graph.interest;
        const size = new Map<number, number>();
        const mark = new Map<number, number>();
        siteOf.forEach((site, b) => {
            size.set(site, (size.get(site) ?? 0) + 1);
            if (!mark.has(site)) mark.set(site, this.scene.markOf[b]!);
        });
        const named = new Map<number, number[]>();
        for (const [site] of [...size].sort((one, other) => other[1] - one[1] || one[0] - other[0])) {
            if (!sites[site]) continue;
            const at = mark.get(site)!;
            (named.get(at) ?? named.set(at, []).get(at)!).push(site);
        }
        const taken: [number, number, number][] = [];
        for (const [at, [site, ...others]] of named) {
            const text = `${sites[site!]!}${others.length ? ` and ${num(others.length)} more` : ""}`;
            const [mx, y] = this.onScreen(this.scene.x[at]!, this.scene.y[at]!);
            const spread = this.scene.size[at]! > 1 ? this.radius(at) : 2.6 * Math.sqrt(size.get(site!)!) + 4;
            const x = mx + 4 + spread;
            const width = 6.2 * text.length;
            if (x < 0 || y < 0 || x + width > this.frame.width || y > this.frame.height) continue;
            if (taken.some(([tx, ty, tw]) => Math.abs(ty - y) < 15 && x < tx + tw + 6 && tx < x + width + 6))
                continue;
            taken.push([x, y, width]);
            this.drawText(context, { ...palette, ink: palette.quiet }, text, x, y, `11px ${FONT}`);
        }
    }
}

interface Place {
    key: number;
    x: number;
    y: number;
}

function trace(context: CanvasRenderingContext2D, pieces: number[][]): void {
    for (const piece of pieces) {
        context.moveTo(piece[0]!, piece[1]!);
        for (let i = 2; i < piece.length; i += 2) context.lineTo(piece[i]!, piece[i + 1]!);
    }
}

function segmentDistance(x: number, y: number, ax: number, ay: number, bx: number, by: number): number {
    const [dx, dy] = [bx - ax, by - ay];
    const along = Math.max(0, Math.min(1, ((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy || 1)));
    return Math.hypot(x - ax - along * dx, y - ay - along * dy);
}
