// The picture of an overlay: the world, all links and brokers, and on top of them what stands out.

import type { ZoomTransform } from "d3-zoom";
import type { Graph } from "./graph";
import type { Dots, Highlight, Strokes } from "./highlight";
import { drawWorld, type Layout } from "./layout";
import { colours, type Colours } from "./theme";

const GROUPS = 5; // links are drawn in so many groups, from thin to thick
const RUN = 250; // links that are stroked at once
const REACH = 12; // pixels between the pointer and what it means

/** Where a picture is drawn, and which part of the plan it shows. */
export interface Frame {
    context: CanvasRenderingContext2D;
    transform: ZoomTransform;
    width: number;
    height: number;
}

export class Painter {
    private groups: number[][] = [];
    private screenX = new Float64Array();
    private screenY = new Float64Array();
    private kind: Layout["kind"] = "forces";
    private frame!: Frame;

    constructor(private readonly graph: Graph) {}

    /** Links in groups from little to much, by load or weight: each group is drawn in one width. */
    group(by: "load" | "weight"): void {
        const values = this.graph.plan.links[by];
        const order = Array.from(values.keys()).sort((a, b) => values[a]! - values[b]!);
        const top = Math.sqrt(values[order[order.length - 1]!] ?? 1) || 1;
        this.groups = Array.from({ length: GROUPS }, () => []);
        for (const link of order)
            this.groups[Math.min(GROUPS - 1, Math.floor((Math.sqrt(values[link]!) / top) * GROUPS))]!.push(
                link,
            );
    }

    paint(frame: Frame, layout: Layout, standing: Highlight | null): void {
        const { context, transform } = frame;
        const palette = colours();
        this.frame = frame;
        this.kind = layout.kind;
        context.fillStyle = palette.paper;
        context.fillRect(0, 0, frame.width, frame.height);
        if (layout.kind === "map") {
            context.save();
            context.translate(transform.x, transform.y);
            context.scale(transform.k, transform.k);
            drawWorld(context, palette.sea, palette.ground, palette.coast, transform.k);
            context.restore();
        }
        this.place(layout);
        this.drawLinks(context, palette, standing !== null);
        this.drawBrokers(context, palette, standing !== null);
        for (const strokes of standing?.strokes ?? []) this.drawStrokes(context, palette, strokes);
        for (const dots of standing?.dots ?? []) this.drawDots(context, palette, dots);
        if (standing === null) this.drawSites(context, palette);
    }

    /** The broker that a point in the picture means, or -1. */
    brokerAt(x: number, y: number): number {
        let [best, distance] = [-1, REACH * REACH];
        for (let b = 0; b < this.graph.brokerCount; b++) {
            const d = (this.screenX[b]! - x) ** 2 + (this.screenY[b]! - y) ** 2;
            if (d < distance) [best, distance] = [b, d];
        }
        return best;
    }

    private place(layout: Layout): void {
        const { k, x, y } = this.frame.transform;
        const step = this.crowded * Math.min(10, 2.8 * Math.sqrt(Math.max(1, k)));
        this.screenX = layout.x.map((at, b) => at * k + x + step * layout.dx[b]!);
        this.screenY = layout.y.map((at, b) => at * k + y + step * layout.dy[b]!);
    }

    private drawLinks(context: CanvasRenderingContext2D, palette: Colours, faint: boolean): void {
        const crowd = Math.min(1, Math.sqrt(1500 / Math.max(1, this.graph.linkCount)));
        context.strokeStyle = palette.link;
        this.groups.forEach((links, i) => {
            const much = (i + 0.5) / GROUPS;
            context.globalAlpha =
                (faint ? 0.12 : 1) * (0.18 + 0.7 * much) * (crowd + (1 - crowd) * much * much);
            context.lineWidth = faint ? 0.5 : 0.5 + 2.2 * much * much;
            this.stroke(context, links.length, (j) => this.graph.ends(links[j]!));
        });
        context.globalAlpha = 1;
    }

    private drawStrokes(context: CanvasRenderingContext2D, palette: Colours, strokes: Strokes): void {
        context.strokeStyle = palette[strokes.colour];
        context.lineWidth = strokes.width;
        context.globalAlpha = strokes.pairs.length > 400 ? 0.6 : 0.9;
        context.setLineDash(strokes.dash ?? []);
        this.stroke(context, strokes.pairs.length, (j) => strokes.pairs[j]!);
        context.setLineDash([]);
        context.globalAlpha = 1;
    }

    /** Lines between brokers; on the map they bend a little, so that those there and back differ from coasts. */
    private stroke(
        context: CanvasRenderingContext2D,
        n: number,
        ends: (j: number) => [number, number],
    ): void {
        const bend = this.kind === "map" ? 0.12 : 0;
        for (let from = 0; from < n; from += RUN) {
            context.beginPath();
            for (let j = from; j < Math.min(n, from + RUN); j++) {
                const [u, v] = ends(j);
                const [ux, uy, vx, vy] = [
                    this.screenX[u]!,
                    this.screenY[u]!,
                    this.screenX[v]!,
                    this.screenY[v]!,
                ];
                context.moveTo(ux, uy);
                const far = bend && Math.abs(vx - ux) > 24;
                if (far)
                    context.quadraticCurveTo((ux + vx) / 2, (uy + vy) / 2 - bend * Math.abs(vx - ux), vx, vy);
                else context.lineTo(vx, vy);
            }
            context.stroke();
        }
    }

    /** By how much dots and the room between them shrink where there are many. */
    private get crowded(): number {
        return Math.max(0.6, Math.min(1, (400 / this.graph.brokerCount) ** 0.25));
    }

    private radius(broker: number): number {
        const grown = Math.min(2, Math.max(1, this.frame.transform.k ** 0.35));
        return this.crowded * grown * Math.min(6, 1.1 + 0.35 * Math.sqrt(this.graph.near[broker]!.length));
    }

    private drawBrokers(context: CanvasRenderingContext2D, palette: Colours, faint: boolean): void {
        context.fillStyle = palette.broker;
        context.strokeStyle = palette.paper;
        context.lineWidth = 0.75;
        context.globalAlpha = faint ? 0.35 : 1;
        for (let b = 0; b < this.graph.brokerCount; b++) {
            context.beginPath();
            context.arc(this.screenX[b]!, this.screenY[b]!, this.radius(b), 0, 2 * Math.PI);
            context.fill();
            context.stroke();
        }
        context.globalAlpha = 1;
    }

    private drawDots(context: CanvasRenderingContext2D, palette: Colours, dots: Dots): void {
        for (const b of dots.brokers) {
            const [x, y, r] = [
                this.screenX[b]!,
                this.screenY[b]!,
                this.radius(b) + (dots.labels ? 2.5 : 0.8),
            ];
            context.beginPath();
            context.arc(x, y, r, 0, 2 * Math.PI);
            context.fillStyle = palette[dots.colour];
            context.fill();
            context.strokeStyle = palette.paper;
            context.lineWidth = 1.2;
            context.stroke();
            if (dots.crossed) this.drawCross(context, palette, x, y, r + 4);
            if (dots.labels)
                this.drawText(
                    context,
                    palette,
                    this.graph.interest.brokers[b]!,
                    x + r + 5,
                    y,
                    "600 13px system-ui, sans-serif",
                );
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
        if (this.kind !== "map") return;
        const first = new Map<number, number>();
        const size = new Map<number, number>();
        this.graph.interest.siteOf.forEach((site, b) => {
            if (!first.has(site)) first.set(site, b);
            size.set(site, (size.get(site) ?? 0) + 1);
        });
        const taken: [number, number, number][] = [];
        for (const [site, b] of [...first].sort(
            (one, other) => size.get(other[0])! - size.get(one[0])! || one[0] - other[0],
        )) {
            const name = this.graph.interest.sites[site]!;
            const [x, y] = [this.screenX[b]! + 8 + 2.6 * Math.sqrt(size.get(site)!), this.screenY[b]!];
            const width = 6.2 * name.length;
            if (!name || x < 0 || y < 0 || x + width > this.frame.width || y > this.frame.height) continue;
            if (taken.some(([tx, ty, tw]) => Math.abs(ty - y) < 15 && x < tx + tw + 6 && tx < x + width + 6))
                continue;
            taken.push([x, y, width]);
            context.globalAlpha = 0.85;
            this.drawText(
                context,
                { ...palette, ink: palette.quiet },
                name,
                x,
                y,
                "11px system-ui, sans-serif",
            );
            context.globalAlpha = 1;
        }
    }
}
