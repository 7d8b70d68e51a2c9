// The map: all brokers and links on one canvas, and what is chosen on top of them.
//
// A picture of everything is kept. While the reader moves it, the picture is moved as a whole, which takes one
// drawing operation however many links there are; it is drawn anew when the movement ends, or at once where
// drawing everything is quick.

import { select } from "d3-selection";
import { zoom, zoomIdentity, type ZoomBehavior, type ZoomTransform } from "d3-zoom";
import { count, el, num } from "./dom";
import type { Graph } from "./graph";
import { highlight, type Dots, type Highlight, type Strokes } from "./highlight";
import { byForces, drawWorld, HEIGHT, placed, WIDTH, type Layout } from "./layout";
import type { Choice, Store } from "./state";
import { colours, onTheme, type Colours } from "./theme";

const QUICK = 10; // ms: a picture that takes no longer is drawn anew in every frame
const REST = 120; // ms without movement, after which it is drawn anew in any case
const GROUPS = 5; // links are drawn in so many groups, from thin to thick
const RUN = 250; // links that are stroked at once
const REACH = 12; // pixels between the pointer and what it means

const views: MapView[] = [];

export class MapView {
  readonly element: HTMLElement;
  private readonly canvas: HTMLCanvasElement;
  private readonly picture = document.createElement("canvas");
  private readonly tip = el("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  private readonly known: Layout | null;
  private forces: Layout | null = null;
  private readonly behaviour: ZoomBehavior<HTMLCanvasElement, unknown>;
  private transform: ZoomTransform = zoomIdentity;
  private drawn: ZoomTransform = zoomIdentity;
  private groups: number[][] = [];
  private chosen: { choice: Choice; found: Highlight | null } | null = null;
  private cost = 0;
  private waiting = 0;
  private timer = 0;
  private width = 0;
  private height = 0;
  private untouched = true;
  private screenX = new Float64Array();
  private screenY = new Float64Array();

  constructor(
    readonly graph: Graph,
    private readonly all: Graph[],
    private readonly store: Store,
  ) {
    this.canvas = el("canvas", { tabindex: 0, role: "application", "aria-label": this.label() });
    this.element = el("div", { class: "map" }, this.canvas, this.tip);
    this.known = placed(graph);
    this.behaviour = zoom<HTMLCanvasElement, unknown>()
      .scaleExtent([0.5, 60])
      .filter((event: MouseEvent) => !event.button && (event.type !== "wheel" || event.ctrlKey || document.activeElement === this.canvas))
      .on("zoom", (event: { transform: ZoomTransform; sourceEvent: Event | null }) => this.moved(event.transform, event.sourceEvent));
    select(this.canvas).call(this.behaviour).on("dblclick.zoom", null);
    this.canvas.addEventListener("pointerdown", () => this.canvas.focus({ preventScroll: true })); // the wheel zooms from now on
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.resize()).observe(this.element);
    onTheme(() => (this.redraw(), this.show())); // at once: paper does not wait for a frame
    store.onChange((state, before) => {
      if (state.linksBy !== before.linksBy) this.group();
      if (state !== before) this.redraw();
    });
    this.group();
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
    return zoomIdentity.translate((this.width - k * WIDTH) / 2, (this.height - k * (HEIGHT + below)) / 2).scale(k);
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
    context.setTransform(scale, 0, 0, scale, devicePixelRatio * (now.x - drawn.x * scale), devicePixelRatio * (now.y - drawn.y * scale));
    context.drawImage(this.picture, 0, 0);
  }

  /** Links in groups from little to much, by load or weight: each group is drawn in one width. */
  private group(): void {
    const values = this.graph.plan.links[this.store.state.linksBy];
    const order = Array.from(values.keys()).sort((a, b) => values[a]! - values[b]!);
    const top = Math.sqrt(values[order[order.length - 1]!] ?? 1) || 1;
    this.groups = Array.from({ length: GROUPS }, () => []);
    for (const link of order) this.groups[Math.min(GROUPS - 1, Math.floor((Math.sqrt(values[link]!) / top) * GROUPS))]!.push(link);
  }

  // Drawing.

  private paint(): void {
    const started = performance.now();
    const context = this.picture.getContext("2d")!;
    const [palette, { layout, transform }] = [colours(), this];
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.fillStyle = palette.paper;
    context.fillRect(0, 0, this.width, this.height);
    if (layout.kind === "map") {
      context.save();
      context.translate(transform.x, transform.y);
      context.scale(transform.k, transform.k);
      drawWorld(context, palette.sea, palette.ground, palette.coast, transform.k);
      context.restore();
    }
    this.place(layout);
    const standing = this.standing();
    this.drawLinks(context, palette, standing !== null);
    this.drawBrokers(context, palette, standing !== null);
    for (const strokes of standing?.strokes ?? []) this.drawStrokes(context, palette, strokes);
    for (const dots of standing?.dots ?? []) this.drawDots(context, palette, dots);
    if (standing === null) this.drawSites(context, palette);
    this.drawn = transform;
    this.cost = performance.now() - started;
    this.canvas.dataset["cost"] = this.cost.toFixed(1);
  }

  /** What stands out; found once for each choice. */
  private standing(): Highlight | null {
    const { choice } = this.store.state;
    if (this.chosen?.choice !== choice) this.chosen = { choice, found: highlight(choice, this.graph, this.all) };
    return this.chosen.found;
  }

  private place(layout: Layout): void {
    const { k, x, y } = this.transform;
    const step = this.crowded * Math.min(10, 2.8 * Math.sqrt(Math.max(1, k)));
    this.screenX = layout.x.map((at, b) => at * k + x + step * layout.dx[b]!);
    this.screenY = layout.y.map((at, b) => at * k + y + step * layout.dy[b]!);
  }

  private drawLinks(context: CanvasRenderingContext2D, palette: Colours, faint: boolean): void {
    const crowd = Math.min(1, Math.sqrt(1500 / Math.max(1, this.graph.linkCount)));
    context.strokeStyle = palette.link;
    this.groups.forEach((links, i) => {
      const much = (i + 0.5) / GROUPS;
      context.globalAlpha = (faint ? 0.12 : 1) * (0.18 + 0.7 * much) * (crowd + (1 - crowd) * much * much);
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
  private stroke(context: CanvasRenderingContext2D, n: number, ends: (j: number) => [number, number]): void {
    const bend = this.layout.kind === "map" ? 0.12 : 0;
    for (let from = 0; from < n; from += RUN) {
      context.beginPath();
      for (let j = from; j < Math.min(n, from + RUN); j++) {
        const [u, v] = ends(j);
        const [ux, uy, vx, vy] = [this.screenX[u]!, this.screenY[u]!, this.screenX[v]!, this.screenY[v]!];
        context.moveTo(ux, uy);
        const far = bend && Math.abs(vx - ux) > 24;
        if (far) context.quadraticCurveTo((ux + vx) / 2, (uy + vy) / 2 - bend * Math.abs(vx - ux), vx, vy);
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
    const grown = Math.min(2, Math.max(1, this.transform.k ** 0.35));
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
      const [x, y, r] = [this.screenX[b]!, this.screenY[b]!, this.radius(b) + (dots.labels ? 2.5 : 0.8)];
      context.beginPath();
      context.arc(x, y, r, 0, 2 * Math.PI);
      context.fillStyle = palette[dots.colour];
      context.fill();
      context.strokeStyle = palette.paper;
      context.lineWidth = 1.2;
      context.stroke();
      if (dots.crossed) this.drawCross(context, palette, x, y, r + 4);
      if (dots.labels) this.drawText(context, palette, this.graph.interest.brokers[b]!, x + r + 5, y, "600 13px system-ui, sans-serif");
    }
  }

  private drawCross(context: CanvasRenderingContext2D, palette: Colours, x: number, y: number, r: number): void {
    context.beginPath();
    context.moveTo(x - r, y - r);
    context.lineTo(x + r, y + r);
    context.moveTo(x - r, y + r);
    context.lineTo(x + r, y - r);
    context.strokeStyle = palette.bad;
    context.lineWidth = 2;
    context.stroke();
  }

  private drawText(context: CanvasRenderingContext2D, palette: Colours, text: string, x: number, y: number, font: string): void {
    context.font = font;
    context.textBaseline = "middle";
    const shown = text.length > 40 ? `${text.slice(0, 39)}…` : text;
    const left = x + context.measureText(shown).width > this.width ? x - context.measureText(shown).width - 20 : x;
    context.lineWidth = 3;
    context.lineJoin = "round";
    context.strokeStyle = palette.paper;
    context.strokeText(shown, left, y);
    context.fillStyle = palette.ink;
    context.fillText(shown, left, y);
  }

  /** Names of sites, the largest first, where no other name is. */
  private drawSites(context: CanvasRenderingContext2D, palette: Colours): void {
    if (this.layout.kind !== "map") return;
    const first = new Map<number, number>();
    const size = new Map<number, number>();
    this.graph.interest.siteOf.forEach((site, b) => {
      if (!first.has(site)) first.set(site, b);
      size.set(site, (size.get(site) ?? 0) + 1);
    });
    const taken: [number, number, number][] = [];
    for (const [site, b] of [...first].sort((one, other) => size.get(other[0])! - size.get(one[0])! || one[0] - other[0])) {
      const name = this.graph.interest.sites[site]!;
      const [x, y] = [this.screenX[b]! + 8 + 2.6 * Math.sqrt(size.get(site)!), this.screenY[b]!];
      const width = 6.2 * name.length;
      if (!name || x < 0 || y < 0 || x + width > this.width || y > this.height) continue;
      if (taken.some(([tx, ty, tw]) => Math.abs(ty - y) < 15 && x < tx + tw + 6 && tx < x + width + 6)) continue;
      taken.push([x, y, width]);
      context.globalAlpha = 0.85;
      this.drawText(context, { ...palette, ink: palette.quiet }, name, x, y, "11px system-ui, sans-serif");
      context.globalAlpha = 1;
    }
  }

  // Pointer and keys.

  private brokerAt(x: number, y: number): number {
    let [best, distance] = [-1, REACH * REACH];
    for (let b = 0; b < this.graph.brokerCount; b++) {
      const d = (this.screenX[b]! - x) ** 2 + (this.screenY[b]! - y) ** 2;
      if (d < distance) [best, distance] = [b, d];
    }
    return best;
  }

  private point(event: PointerEvent): void {
    const b = event.buttons ? -1 : this.brokerAt(event.offsetX, event.offsetY);
    this.tip.hidden = b < 0;
    this.canvas.style.cursor = b < 0 ? "" : "pointer";
    if (b < 0) return;
    const { graph } = this;
    const site = graph.site(b);
    this.tip.replaceChildren(
      el("strong", {}, graph.interest.brokers[b]!),
      site && el("span", {}, site),
      el("span", {}, `${count(graph.near[b]!.length, "link")}, ${count(graph.topicsOf[b]!.length, "topic")}, load ${num(graph.plan.load[b])}`),
    );
    const right = event.offsetX > this.width - 220;
    this.tip.style.left = `${event.offsetX + (right ? -12 : 14)}px`;
    this.tip.style.top = `${event.offsetY + 12}px`;
    this.tip.style.transform = right ? "translateX(-100%)" : "";
  }

  private click(event: MouseEvent): void {
    const b = this.brokerAt(event.offsetX, event.offsetY);
    this.store.choose(b < 0 ? { kind: "nothing" } : { kind: "broker", broker: this.graph.interest.brokers[b]! });
  }

  private key(event: KeyboardEvent): void {
    const pans: Record<string, [number, number]> = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
    const pan = pans[event.key];
    if (pan) select(this.canvas).call(this.behaviour.translateBy, pan[0] / this.transform.k, pan[1] / this.transform.k);
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
    const now = choice.kind === "broker" || choice.kind === "failure" ? (this.graph.brokerIndex.get(choice.broker) ?? -1) : by > 0 ? -1 : n;
    this.store.choose({ kind: "broker", broker: this.graph.interest.brokers[(now + by + n) % n]! });
  }
}
