// The map: all brokers and links on one canvas, and what is chosen on top of them.
//
// Two pictures are kept: one of everything, one of what stands out. Another choice paints the second one only. While
// the reader moves the map, both are moved as a whole, which takes few drawing operations however many links there
// are; they are painted again when the movement ends, or at once where that is quick.

import { select } from "d3-selection";
import { zoom, zoomIdentity, type ZoomBehavior, type ZoomTransform } from "d3-zoom";
import { count, el, num } from "./dom";
import type { Graph } from "./graph";
import { highlight, type Highlight } from "./highlight";
import { boundsOf, byForces, HEIGHT, include, placed, WIDTH, type Bounds, type Layout } from "./layout";
import { Painter, type Frame } from "./picture";
import { SceneFinder, type Bundle, type Scene } from "./scene";
import type { Choice, State, Store, Window } from "./state";
import { SvgContext } from "./svg";
import { colours, onTheme } from "./theme";

const QUICK = 10; // ms: a picture that takes no longer is painted again in every frame
const REST = 120; // ms without movement, after which it is painted again in any case
const LEAST_WIDTH = 60; // units of the layout: what is chosen is shown with at least this much around it
const MOST_SCALE = 400;

const views: MapView[] = [];

/** Forget the maps of a page that is replaced. */
export function forgetMaps(): void {
    views.length = 0;
}

export class MapView {
    readonly element: HTMLElement;
    private readonly canvas: HTMLCanvasElement;
    private readonly base = document.createElement("canvas");
    private readonly over = document.createElement("canvas");
    private readonly tip = el("div", { class: "tip", hidden: true, "aria-hidden": "true" });
    private readonly painter: Painter;
    private readonly known: Layout | null;
    private forces: Layout | null = null;
    private finder: SceneFinder | null = null;
    private finderOf: Layout | null = null;
    private scene: Scene | null = null;
    private readonly behaviour: ZoomBehavior<HTMLCanvasElement, unknown>;
    private transform: ZoomTransform = zoomIdentity;
    private drawn: ZoomTransform | null = null;
    private overDrawn = false;
    private chosen: { choice: Choice; fleet: State["fleet"]; found: Highlight | null } | null = null;
    private cost = 0;
    private painted = 0;
    private waiting = 0;
    private timer = 0;
    private width = 0;
    private height = 0;
    private byReader = false;

    constructor(
        readonly graph: Graph,
        private readonly all: Graph[],
        private readonly store: Store,
        private readonly told: () => void,
    ) {
        this.canvas = el("canvas", { tabindex: 0, role: "application", "aria-label": this.label() });
        this.element = el("div", { class: "map" }, this.canvas, this.tip);
        this.painter = new Painter(graph);
        this.known = placed(graph, all);
        this.behaviour = zoom<HTMLCanvasElement, unknown>()
            .scaleExtent([0.2, MOST_SCALE])
            .filter((event: Event) => this.isForMap(event))
            .on("zoom", (event: { transform: ZoomTransform; sourceEvent: Event | null }) =>
                this.moved(event.transform, event.sourceEvent),
            );
        select(this.canvas).call(this.behaviour).on("dblclick.zoom", null);
        // The wheel zooms from now on.
        this.canvas.addEventListener("pointerdown", () => this.canvas.focus({ preventScroll: true }));
        this.canvas.addEventListener("pointermove", (event) => this.point(event));
        this.canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
        this.canvas.addEventListener("click", (event) => this.click(event));
        this.canvas.addEventListener("keydown", (event) => this.key(event));
        new ResizeObserver(() => this.resize()).observe(this.element);
        onTheme(() => (this.redraw(), this.show())); // at once: paper does not wait for a frame
        store.onChange((state, before, effect) => this.changed(state, before, effect.move ?? false));
        views.push(this);
    }

    /** Bundles of links that are not drawn, because there are too many. */
    get leftOut(): number {
        return this.scene?.leftOut ?? 0;
    }

    /** Whether some brokers share a mark. */
    get clustered(): boolean {
        return this.scene !== null && this.scene.size.length < this.graph.brokerCount;
    }

    /** Fit the fleet into view. */
    fit(): void {
        this.store.set({ window: null });
        if (this.width) this.setZoom(this.fitting(this.everything()));
    }

    zoomBy(factor: number): void {
        this.byReader = true;
        select(this.canvas).call(this.behaviour.scaleBy, factor);
    }

    /** The picture as an SVG file. */
    toSvg(): string {
        const context = new SvgContext(this.width, this.height);
        const frame = { ...this.frameOf(this.base), context: context as unknown as CanvasRenderingContext2D };
        this.painter.paintBase(frame, this.layout, this.sceneNow());
        const standing = this.standing();
        if (standing) this.painter.paintOver(frame, standing, this.ghosts(standing));
        this.redraw();
        return context.toString();
    }

    /** The picture as a PNG file. */
    toPng(): Promise<Blob | null> {
        this.redraw();
        this.show();
        return new Promise((done) => this.canvas.toBlob(done));
    }

    private label(): string {
        const what = `${count(this.graph.brokerCount, "broker")} and ${count(this.graph.linkCount, "link")}`;
        return `Map of ${what}. Arrow keys move it, plus and minus zoom, 0 fits it, n and p go from broker to broker. All brokers, links and topics are also in the tables below.`;
    }

    private get layout(): Layout {
        if (this.known !== null && this.store.state.layout === "places") return this.known;
        this.forces ??= byForces(this.graph, (done) => {
            if (this.store.state.window === null && done) this.fit();
            this.redraw();
        });
        return this.forces;
    }

    private fitting({ left, right, top, bottom }: Bounds, least = 0): ZoomTransform {
        const across = Math.max(right - left, least, 1e-6);
        const down = Math.max(bottom - top, (least * HEIGHT) / WIDTH, 1e-6);
        const pad = Math.min(30, this.width / 12);
        const scale = Math.min((this.width - 2 * pad) / across, (this.height - 2 * pad) / down);
        const widest = this.width / (least || LEAST_WIDTH);
        const k = Math.min(scale, widest, MOST_SCALE);
        return zoomIdentity
            .translate(this.width / 2 - (k * (left + right)) / 2, this.height / 2 - (k * (top + bottom)) / 2)
            .scale(k);
    }

    private setZoom(transform: ZoomTransform): void {
        select(this.canvas).call(this.behaviour.transform, transform);
    }

    /** The first pointer on a touch screen scrolls the page, two move the map; the wheel zooms a map with the focus. */
    private isForMap(event: Event): boolean {
        if (event.type.startsWith("touch")) return (event as TouchEvent).touches.length > 1;
        const mouse = event as MouseEvent;
        return (
            !mouse.button &&
            (mouse.type !== "wheel" || mouse.ctrlKey || document.activeElement === this.canvas)
        );
    }

    /** Follow the zoom, and take the other maps along if the reader moved this one. */
    private moved(transform: ZoomTransform, by: Event | null): void {
        this.transform = transform;
        if (by !== null) this.byReader = true;
        if (this.byReader) for (const other of views) other.follow(this);
        this.frame();
        clearTimeout(this.timer);
        this.timer = window.setTimeout(() => this.rest(), REST);
    }

    private rest(): void {
        if (this.byReader) {
            const now = this.windowNow();
            this.byReader = false;
            this.setZoom(this.fromWindow(now)); // exactly what the address says
            clearTimeout(this.timer);
            this.store.set({ window: now });
        }
        this.redraw();
    }

    /** Move as another map was moved by the reader. */
    private follow(leader: MapView): void {
        if (this !== leader && this.width > 0 && this.element.isConnected) this.setZoom(leader.transform);
    }

    private windowNow(): Window {
        const { k, x, y } = this.transform;
        const rounded = (value: number): number => Number(value.toFixed(3));
        return {
            x: rounded((this.width / 2 - x) / k),
            y: rounded((this.height / 2 - y) / k),
            width: rounded(this.width / k),
        };
    }

    private fromWindow({ x, y, width }: Window): ZoomTransform {
        const k = this.width / width;
        return zoomIdentity.translate(this.width / 2 - k * x, this.height / 2 - k * y).scale(k);
    }

    /** Show the part of the layout that the state says. */
    private place(): void {
        if (!this.width) return;
        const { window: wanted } = this.store.state;
        this.setZoom(wanted ? this.fromWindow(wanted) : this.fitting(this.everything()));
    }

    /** The bounds of the fleet, and of brokers that a comparison shows beside it. */
    private everything(): Bounds {
        const bounds = boundsOf(this.layout, null, this.graph);
        const standing = this.standing();
        for (const [x, y] of standing ? this.ghosts(standing) : []) include(bounds, x, y);
        return bounds;
    }

    private changed(state: State, before: State, move: boolean): void {
        if (state.layout !== before.layout) this.place();
        else if (state.window !== before.window && !this.isShown(state.window)) this.place();
        if (state.linksBy !== before.linksBy || state.layout !== before.layout) this.redraw();
        if (state.choice !== before.choice || state.fleet !== before.fleet) {
            this.overDrawn = false;
            if (move) this.lookAt();
            this.frame();
        }
    }

    private isShown(wanted: Window | null): boolean {
        const now = this.windowNow();
        return (
            wanted !== null &&
            Math.abs(now.x - wanted.x) + Math.abs(now.y - wanted.y) + Math.abs(now.width - wanted.width) <
                0.05
        );
    }

    /** Move the map to what is chosen, unless all of it is in view and by itself. */
    private lookAt(): void {
        const standing = this.standing();
        if (!standing || !this.width || !this.scene) return;
        const { choice } = this.store.state;
        const last = standing.dots[standing.dots.length - 1]!;
        const own = choice.kind === "topic" ? standing.dots.flatMap((dots) => dots.brokers) : last.brokers;
        const focus = own.filter((b) => b < this.graph.brokerCount);
        if (choice.kind === "change") this.fit();
        if (!focus.length || choice.kind === "change" || choice.kind === "effect") return;
        const { markOf, inView, size } = this.scene;
        const few = focus.length < 3;
        if (focus.every((b) => inView[markOf[b]!] && (!few || size[markOf[b]!] === 1))) return;
        this.byReader = true;
        this.setZoom(this.fitting(boundsOf(this.layout, focus, this.graph), LEAST_WIDTH));
    }

    private resize(): void {
        const { clientWidth, clientHeight } = this.element;
        if (!clientWidth || (clientWidth === this.width && clientHeight === this.height)) return;
        [this.width, this.height] = [clientWidth, clientHeight];
        for (const canvas of [this.canvas, this.base, this.over]) {
            canvas.width = Math.round(this.width * devicePixelRatio);
            canvas.height = Math.round(this.height * devicePixelRatio);
        }
        this.behaviour.extent([
            [0, 0],
            [this.width, this.height],
        ]);
        this.place();
        this.redraw();
        this.show();
    }

    /** Paint everything again before the next frame. */
    redraw(): void {
        this.drawn = null;
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
        if (this.drawn === null || (this.cost < QUICK && this.drawn !== this.transform)) this.paintBase();
        if (!this.overDrawn) this.paintOver();
        const context = this.canvas.getContext("2d")!;
        const { transform: now } = this;
        const drawn = this.drawn!;
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
        context.drawImage(this.base, 0, 0);
        if (this.standing()) context.drawImage(this.over, 0, 0);
    }

    private frameOf(canvas: HTMLCanvasElement): Frame {
        const context = canvas.getContext("2d")!;
        context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
        return { context, transform: this.transform, width: this.width, height: this.height };
    }

    private sceneNow(): Scene {
        const { layout } = this;
        if (this.finderOf !== layout)
            [this.finder, this.finderOf] = [new SceneFinder(this.graph, layout), layout];
        const { k, x, y } = this.transform;
        const view = {
            left: -x / k,
            right: (this.width - x) / k,
            top: -y / k,
            bottom: (this.height - y) / k,
        };
        const values = this.graph.plan.links[this.store.state.linksBy];
        return this.finder!.find(view, k, this.painter.stepAt(k), values);
    }

    private paintBase(): void {
        const started = performance.now();
        this.scene = this.sceneNow();
        this.painter.paintBase(this.frameOf(this.base), this.layout, this.scene);
        this.drawn = this.transform;
        this.overDrawn = false;
        this.cost = performance.now() - started;
        let marks = this.scene.bundles.length;
        for (const seen of this.scene.inView) marks += seen;
        Object.assign(this.canvas.dataset, {
            cost: this.cost.toFixed(1),
            marks: String(marks),
            painted: String(++this.painted),
        });
        this.told();
    }

    private paintOver(): void {
        this.overDrawn = true;
        const standing = this.standing();
        if (!standing) return;
        const frame = { ...this.frameOf(this.over), transform: this.drawn! };
        frame.context.clearRect(0, 0, this.width, this.height);
        this.painter.paintOver(frame, standing, this.ghosts(standing));
    }

    /** Where brokers of another plan are: at their own places, or amid their neighbours. */
    private ghosts(standing: Highlight): [number, number][] {
        const { layout } = this;
        return standing.ghosts.map(({ graph, broker, near }, i) => {
            const own = layout.kind === "forces" ? null : placed(graph, this.all);
            if (own && own.kind === layout.kind && own.y[broker]! <= HEIGHT)
                return [own.x[broker]!, own.y[broker]!];
            if (!near.length) return [WIDTH / 2 + 12 * i, HEIGHT + 10];
            const mean = (at: Float64Array): number => near.reduce((sum, b) => sum + at[b]!, 0) / near.length;
            return [mean(layout.x) + 6 + i, mean(layout.y) + 6];
        });
    }

    /** What stands out; found once for each choice. */
    private standing(): Highlight | null {
        const { choice, fleet } = this.store.state;
        if (this.chosen?.choice !== choice || this.chosen.fleet !== fleet)
            this.chosen = { choice, fleet, found: highlight(choice, this.graph, this.all, fleet) };
        return this.chosen.found;
    }

    // Pointer and keys.

    private point(event: PointerEvent): void {
        const lines = event.buttons || !this.scene ? null : this.describe(event.offsetX, event.offsetY);
        this.tip.hidden = lines === null;
        this.canvas.style.cursor = lines === null ? "" : "pointer";
        if (lines === null) return;
        const [first, ...more] = lines;
        this.tip.replaceChildren(
            el("strong", {}, first!),
            ...more.filter((line) => line).map((line) => el("span", {}, line)),
        );
        const right = event.offsetX > this.width - 220;
        this.tip.style.left = `${event.offsetX + (right ? -12 : 14)}px`;
        this.tip.style.top = `${event.offsetY + 12}px`;
        this.tip.style.transform = right ? "translateX(-100%)" : "";
    }

    /** What is at a point, in words. */
    private describe(x: number, y: number): string[] | null {
        const { graph } = this;
        const mark = this.painter.markAt(x, y);
        if (mark >= 0) {
            const b = this.scene!.broker[mark]!;
            const n = this.scene!.size[mark]!;
            if (n > 1) {
                const sites = this.sitesOf(mark);
                return [
                    count(n, "broker"),
                    sites.length > 3 ? count(sites.length, "site") : sites.join(", "),
                ];
            }
            const facts = `${count(graph.degree(b), "link")}, ${count(graph.topicCount(b), "topic")}, load ${num(graph.plan.load[b])}`;
            return [graph.interest.brokers[b]!, graph.site(b), facts];
        }
        const bundle = this.painter.bundleAt(x, y);
        if (!bundle) return null;
        const by = this.store.state.linksBy;
        if (bundle.links > 1)
            return [count(bundle.links, "link"), this.endsOf(bundle), `${by} ${num(bundle.value)} together`];
        const [u, v] = graph.ends(bundle.link);
        const { weight, load } = graph.plan.links;
        return [
            `${graph.interest.brokers[u]} – ${graph.interest.brokers[v]}`,
            `weight ${num(weight[bundle.link])}, ${count(load[bundle.link]!, "topic")}`,
        ];
    }

    private endsOf({ a, b }: Bundle): string {
        return [a, b].map((mark) => this.sitesOf(mark).join(", ").slice(0, 60)).join(" – ");
    }

    private sitesOf(mark: number): string[] {
        return [...new Set(this.brokersOf(mark).map((b) => this.graph.site(b)))];
    }

    private brokersOf(...marks: number[]): number[] {
        const found: number[] = [];
        this.scene!.markOf.forEach((mark, b) => marks.includes(mark) && found.push(b));
        return found;
    }

    private click(event: MouseEvent): void {
        const effect = {};
        const mark = this.painter.markAt(event.offsetX, event.offsetY);
        const bundle = mark < 0 ? this.painter.bundleAt(event.offsetX, event.offsetY) : null;
        const { brokers } = this.graph.interest;
        if (mark >= 0 && this.scene!.size[mark] === 1)
            this.store.choose({ kind: "broker", broker: brokers[this.scene!.broker[mark]!]! }, effect);
        else if (mark >= 0) {
            const sites = this.sitesOf(mark);
            if (sites.length === 1 && sites[0]) this.store.choose({ kind: "site", site: sites[0] }, effect);
            else this.enter(this.brokersOf(mark));
        } else if (bundle?.links === 1) {
            const [u, v] = this.graph.ends(bundle.link);
            this.store.choose({ kind: "link", ends: [brokers[u]!, brokers[v]!] }, effect);
        } else if (bundle) {
            const sites = [bundle.a, bundle.b].map((one) => this.sitesOf(one));
            if (sites.every((names) => names.length === 1 && names[0]))
                this.store.choose({ kind: "between", sites: [sites[0]![0]!, sites[1]![0]!] }, effect);
            else this.enter(this.brokersOf(bundle.a, bundle.b));
        } else this.store.choose({ kind: "nothing" }, effect);
    }

    /** Zoom in until some brokers fill the view. */
    private enter(brokers: number[]): void {
        this.byReader = true;
        const before = this.transform.k;
        const wanted = this.fitting(boundsOf(this.layout, brokers, this.graph));
        if (wanted.k > before * 1.2) this.setZoom(wanted);
        else this.zoomBy(2);
    }

    private key(event: KeyboardEvent): void {
        const pans: Record<string, [number, number]> = {
            ArrowLeft: [60, 0],
            ArrowRight: [-60, 0],
            ArrowUp: [0, 60],
            ArrowDown: [0, -60],
        };
        const pan = pans[event.key];
        if (pan) {
            this.byReader = true;
            select(this.canvas).call(
                this.behaviour.translateBy,
                pan[0] / this.transform.k,
                pan[1] / this.transform.k,
            );
        } else if (event.key === "+" || event.key === "=") this.zoomBy(1.4);
        else if (event.key === "-") this.zoomBy(1 / 1.4);
        else if (event.key === "0") for (const view of views) view.fit();
        else if (event.key === "n" || event.key === "p") this.step(event.key === "n" ? 1 : -1);
        else return;
        event.preventDefault();
    }

    /** Choose the next broker, or the one before. */
    private step(by: number): void {
        const { choice } = this.store.state;
        const n = this.graph.brokerCount;
        if (!n) return;
        const now =
            choice.kind === "broker" ? (this.graph.brokerIndex.get(choice.broker) ?? -1) : by > 0 ? -1 : n;
        const broker = this.graph.interest.brokers[(now + by + n) % n]!;
        this.store.choose({ kind: "broker", broker }, { move: true });
    }
}
