// The map: all brokers and links on one canvas, and what is chosen on top of them.
//
// A picture of everything is kept. While the reader moves it, the picture is moved as a whole, which takes one
// drawing operation however many links there are; it is drawn anew when the movement ends, or at once where
// drawing everything is quick.

import { select } from "d3-selection";
import { zoom, zoomIdentity, type ZoomBehavior, type ZoomTransform } from "d3-zoom";
import { count, el, num } from "./dom";
import type { Graph } from "./graph";
import { highlight, type Highlight } from "./highlight";
import { byForces, HEIGHT, placed, WIDTH, type Layout } from "./layout";
import { Painter } from "./picture";
import type { Choice, Store } from "./state";
import { colours, onTheme } from "./theme";

const QUICK = 10; // ms: a picture that takes no longer is drawn anew in every frame
const REST = 120; // ms without movement, after which it is drawn anew in any case

const views: MapView[] = [];

export class MapView {
    readonly element: HTMLElement;
    private readonly canvas: HTMLCanvasElement;
    private readonly picture = document.createElement("canvas");
    private readonly tip = el("div", { class: "tip", hidden: true, "aria-hidden": "true" });
    private readonly painter: Painter;
    private readonly known: Layout | null;
    private forces: Layout | null = null;
    private readonly behaviour: ZoomBehavior<HTMLCanvasElement, unknown>;
    private transform: ZoomTransform = zoomIdentity;
    private drawn: ZoomTransform = zoomIdentity;
    private chosen: { choice: Choice; found: Highlight | null } | null = null;
    private cost = 0;
    private waiting = 0;
    private timer = 0;
    private width = 0;
    private height = 0;
    private untouched = true;

    constructor(
        readonly graph: Graph,
        private readonly all: Graph[],
        private readonly store: Store,
    ) {
        this.canvas = el("canvas", { tabindex: 0, role: "application", "aria-label": this.label() });
        this.element = el("div", { class: "map" }, this.canvas, this.tip);
        this.painter = new Painter(graph);
        this.painter.group(store.state.linksBy);
        this.known = placed(graph);
        this.behaviour = zoom<HTMLCanvasElement, unknown>()
            .scaleExtent([0.5, 60])
            .filter(
                (event: MouseEvent) =>
                    !event.button &&
                    (event.type !== "wheel" || event.ctrlKey || document.activeElement === this.canvas),
            )
            .on("zoom", (event: { transform: ZoomTransform; sourceEvent: Event | null }) =>
                this.moved(event.transform, event.sourceEvent),
            );
        select(this.canvas).call(this.behaviour).on("dblclick.zoom", null);
        this.canvas.addEventListener("pointerdown", () => this.canvas.focus({ preventScroll: true })); // the wheel zooms from now on
        this.canvas.addEventListener("pointermove", (event) => this.point(event));
        this.canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
        this.canvas.addEventListener("click", (event) => this.click(event));
        this.canvas.addEventListener("keydown", (event) => this.key(event));
        new ResizeObserver(() => this.resize()).observe(this.element);
        onTheme(() => (this.redraw(), this.show())); // at once: paper does not wait for a frame
        store.onChange((state, before) => {
            if (state.linksBy !== before.linksBy) this.painter.group(state.linksBy);
            if (state !== before) this.redraw();
        });
        views.push(this);
    }

    /** Fit everything into view. */
    fit(): void {
        if (!this.width) return;
        this.setZoom(this.fitting());
        this.untouched = true;
    }

    zoomBy(factor: number): void {
        this.untouched = false;
        select(this.canvas).call(this.behaviour.scaleBy, factor);
    }

    private label(): string {
        const what = `${count(this.graph.brokerCount, "broker")} and ${count(this.graph.linkCount, "link")}`;
        return `Map of ${what}. Arrow keys move it, plus and minus zoom, 0 fits it, n and p go from broker to broker. All brokers can also be found by name.`;
    }

    private get layout(): Layout {
        if (this.known !== null && this.store.state.layout === "places") return this.known;
        this.forces ??= byForces(this.graph, () => this.redraw());
        return this.forces;
    }

    private fitting(): ZoomTransform {
        const below = this.layout.homeless ? 30 : 0;
        const k = Math.min(this.width / WIDTH, this.height / (HEIGHT + below)) * 0.98;
        return zoomIdentity
            .translate((this.width - k * WIDTH) / 2, (this.height - k * (HEIGHT + below)) / 2)
            .scale(k);
    }

    private setZoom(transform: ZoomTransform): void {
        select(this.canvas).call(this.behaviour.transform, transform);
    }

    /** Follow the zoom, and take the other maps along if the reader moved this one. */
    private moved(transform: ZoomTransform, by: Event | null): void {
        this.transform = transform;
        if (by !== null) for (const other of views) other.follow(this);
        this.frame();
        clearTimeout(this.timer);
        this.timer = window.setTimeout(() => this.redraw(), REST);
    }

    /** Move as another map was moved by the reader. */
    private follow(leader: MapView): void {
        this.untouched = false;
        if (this !== leader && this.width > 0) this.setZoom(leader.transform);
    }

    private resize(): void {
        const { clientWidth, clientHeight } = this.element;
        if (!clientWidth || (clientWidth === this.width && clientHeight === this.height)) return;
        [this.width, this.height] = [clientWidth, clientHeight];
        for (const canvas of [this.canvas, this.picture]) {
            canvas.width = Math.round(this.width * devicePixelRatio);
            canvas.height = Math.round(this.height * devicePixelRatio);
        }
        this.behaviour.extent([
            [0, 0],
            [this.width, this.height],
        ]);
        if (this.untouched) this.fit();
        this.redraw();
        this.show();
    }

    /** Draw everything anew before the next frame. */
    redraw(): void {
        this.drawn = zoomIdentity.scale(0);
        this.frame();
    }

    private frame(): void {
        if (this.waiting || !this.width) return;
        this.waiting = requestAnimationFrame(() => this.show());
    }

    private show(): void {
        cancelAnimationFrame(this.waiting);
        this.waiting = 0;
        if (!this.width) return;
        if (this.drawn.k === 0 || (this.cost < QUICK && this.drawn !== this.transform)) this.paint();
        const context = this.canvas.getContext("2d")!;
        const { transform: now, drawn } = this;
        const scale = now.k / drawn.k;
        context.setTransform(1, 0, 0, 1, 0, 0);
        context.fillStyle = colours().paper;
        context.fillRect(0, 0, this.canvas.width, this.canvas.height);
        context.setTransform(
            scale,
            0,
            0,
            scale,
            devicePixelRatio * (now.x - drawn.x * scale),
            devicePixelRatio * (now.y - drawn.y * scale),
        );
        context.drawImage(this.picture, 0, 0);
    }

    private paint(): void {
        const started = performance.now();
        const context = this.picture.getContext("2d")!;
        context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
        const frame = { context, transform: this.transform, width: this.width, height: this.height };
        this.painter.paint(frame, this.layout, this.standing());
        this.drawn = this.transform;
        this.cost = performance.now() - started;
        this.canvas.dataset["cost"] = this.cost.toFixed(1);
    }

    /** What stands out; found once for each choice. */
    private standing(): Highlight | null {
        const { choice } = this.store.state;
        if (this.chosen?.choice !== choice)
            this.chosen = { choice, found: highlight(choice, this.graph, this.all) };
        return this.chosen.found;
    }

    // Pointer and keys.

    private point(event: PointerEvent): void {
        const b = event.buttons ? -1 : this.painter.brokerAt(event.offsetX, event.offsetY);
        this.tip.hidden = b < 0;
        this.canvas.style.cursor = b < 0 ? "" : "pointer";
        if (b < 0) return;
        const { graph } = this;
        const site = graph.site(b);
        this.tip.replaceChildren(
            el("strong", {}, graph.interest.brokers[b]!),
            site && el("span", {}, site),
            el(
                "span",
                {},
                `${count(graph.near[b]!.length, "link")}, ${count(graph.topicsOf[b]!.length, "topic")}, load ${num(graph.plan.load[b])}`,
            ),
        );
        const right = event.offsetX > this.width - 220;
        this.tip.style.left = `${event.offsetX + (right ? -12 : 14)}px`;
        this.tip.style.top = `${event.offsetY + 12}px`;
        this.tip.style.transform = right ? "translateX(-100%)" : "";
    }

    private click(event: MouseEvent): void {
        const b = this.painter.brokerAt(event.offsetX, event.offsetY);
        this.store.choose(
            b < 0 ? { kind: "nothing" } : { kind: "broker", broker: this.graph.interest.brokers[b]! },
        );
    }

    private key(event: KeyboardEvent): void {
        const pans: Record<string, [number, number]> = {
            ArrowLeft: [60, 0],
            ArrowRight: [-60, 0],
            ArrowUp: [0, 60],
            ArrowDown: [0, -60],
        };
        const pan = pans[event.key];
        if (pan)
            select(this.canvas).call(
                this.behaviour.translateBy,
                pan[0] / this.transform.k,
                pan[1] / this.transform.k,
            );
        else if (event.key === "+" || event.key === "=") this.zoomBy(1.4);
        else if (event.key === "-") this.zoomBy(1 / 1.4);
        else if (event.key === "0") for (const view of views) view.fit();
        else if (event.key === "n" || event.key === "p") this.step(event.key === "n" ? 1 : -1);
        else return;
        if ("+=-".includes(event.key) || pan) for (const other of views) other.follow(this);
        event.preventDefault();
    }

    /** Choose the next broker, or the one before. */
    private step(by: number): void {
        const { choice } = this.store.state;
        const n = this.graph.brokerCount;
        if (!n) return;
        const now =
            choice.kind === "broker" || choice.kind === "failure"
                ? (this.graph.brokerIndex.get(choice.broker) ?? -1)
                : by > 0
                  ? -1
                  : n;
        this.store.choose({ kind: "broker", broker: this.graph.interest.brokers[(now + by + n) % n]! });
    }
}
