// The page: reads the record that stands in it, and shows it.

import { asked, bottlenecks, certificate, degrees, diameters, lengths, sites } from "./charts";
import { notCarried } from "./carried";
import { changes, comparison, measured } from "./compare";
import { contentView, marketView } from "./content";
import { button, el, num, percent, section } from "./dom";
import { finder } from "./finder";
import { graphs, type Graph } from "./graph";
import { MapView } from "./map";
import { panel } from "./panel";
import type { Report } from "./record";
import { rows } from "./rows";
import { Store } from "./state";
import { isDark, onTheme, setTheme, watchTheme } from "./theme";

const MOST_MAPS = 4;

function start(): void {
    const report = JSON.parse(document.getElementById("record")!.textContent!) as Report;
    const all = graphs(report);
    const places = all.some((graph) => graph.interest.places.kind !== "none");
    const store = new Store({
        choice: { kind: "nothing" },
        plan: 0,
        sideBySide: false,
        linksBy: "load",
        layout: places ? "places" : "forces",
    });
    watchTheme();
    document.getElementById("top")!.append(themeButton());
    const main = document.getElementById("report")!;
    main.replaceChildren();
    for (const kind of ["overlay", "content", "market"]) {
        const alike = report.plans.filter((plan) => plan.kind === kind);
        if (alike.length > 1) main.append(comparison(alike));
    }
    if (all.length > 1) main.append(changes(all, store));
    if (all.length) main.append(overlayView(all, store));
    for (const plan of report.plans) {
        if (plan.kind === "overlay") continue;
        if (report.plans.length > 1) main.append(el("h2", { class: "plan" }, plan.name));
        main.append(...(plan.kind === "content" ? contentView(plan) : marketView(plan)));
    }
    if (report.rows) main.append(rows(report.rows));
    main.append(
        el("footer", {}, `Made by Broadloom ${report.broadloom}. This page asks nothing of any server.`),
    );
    document.addEventListener("keydown", (event) => {
        const typing = event.target instanceof HTMLInputElement;
        if (event.key === "Escape") store.choose({ kind: "nothing" });
        else if (event.key === "/" && !typing) {
            document.getElementById("find")?.focus();
            event.preventDefault();
        }
    });
    document.documentElement.dataset["ready"] = "true";
}

function themeButton(): HTMLElement {
    const label = (): string => (isDark() ? "Light" : "Dark");
    const toggle = button(label(), () => setTheme(isDark() ? "light" : "dark"), {
        id: "theme",
        class: "act small",
    });
    onTheme(() => (toggle.textContent = label()));
    return toggle;
}

function overlayView(all: Graph[], store: Store): HTMLElement {
    const current = (): Graph => all[store.state.plan]!;
    const details = el("div", { class: "cards" });
    const tiles = el("ul", { class: "tiles", "aria-label": "The plan in numbers" });
    const name = el("h2", { class: "plan", hidden: all.length < 2 });
    const missing = el("div", {});
    const show = (): void => {
        const graph = current();
        name.textContent = graph.plan.name;
        tiles.replaceChildren(...tilesOf(graph));
        missing.replaceChildren(notCarried(graph.plan));
        const parts = [
            degrees(graph),
            diameters(graph),
            lengths(graph),
            bottlenecks(graph, store),
            sites(graph),
            certificate(graph.plan),
            asked(graph.plan),
            all.length > 1 ? null : measured(graph.plan),
        ];
        details.replaceChildren(...parts.filter((part): part is HTMLElement => part !== null));
    };
    store.onChange((state, before) => {
        if (state.plan !== before.plan) show();
    });
    show();
    return el("div", {}, name, tiles, missing, mapSection(all, store, current), details);
}

function tilesOf({ plan }: Graph): HTMLElement[] {
    const m = plan.metrics as Record<string, number>;
    const broken = m["disconnected_topics"]!;
    const tile = (value: string, what: string, bad = false): HTMLElement =>
        el("li", { class: bad ? "bad" : undefined }, el("strong", {}, value), el("span", {}, what));
    return [
        tile(num(m["nodes"]), "brokers"),
        tile(num(m["edges"]), "links"),
        broken
            ? tile(num(broken), "topics NOT connected", true)
            : tile(num(m["topics"]), "topics, all connected"),
        tile(num(m["max_degree"]), "links at most of one broker"),
        tile(num(m["max_diameter"]), "hops at most in a topic"),
        plan.certificate.gap === null
            ? tile(num(m["total_weight"]), "total weight")
            : tile(percent(plan.certificate.gap), "at most above the best possible"),
    ];
}

function mapSection(all: Graph[], store: Store, current: () => Graph): HTMLElement {
    const views = all.slice(0, MOST_MAPS).map((graph) => new MapView(graph, all, store));
    const extra = new Map<number, MapView>();
    const viewOf = (plan: number): MapView =>
        views[plan] ?? extra.get(plan) ?? extra.set(plan, new MapView(all[plan]!, all, store)).get(plan)!;
    const maps = el("div", { class: "maps", id: "maps" });
    const show = (): void => {
        const { sideBySide, plan } = store.state;
        const shown = sideBySide ? views : [viewOf(plan)];
        maps.classList.toggle("several", shown.length > 1);
        maps.replaceChildren(
            ...shown.map((view) =>
                el(
                    "figure",
                    {},
                    all.length > 1 ? el("figcaption", {}, view.graph.plan.name) : null,
                    view.element,
                ),
            ),
        );
    };
    store.onChange((state, before) => {
        if (state.plan !== before.plan || state.sideBySide !== before.sideBySide) show();
    });
    show();
    const each = (act: (view: MapView) => void) => (): void =>
        (store.state.sideBySide ? views : [viewOf(store.state.plan)]).forEach(act);
    const zooms = el(
        "div",
        { class: "group", role: "group", "aria-label": "Zoom" },
        button(
            "+",
            each((view) => view.zoomBy(1.5)),
            { "aria-label": "Zoom in" },
        ),
        button(
            "−",
            each((view) => view.zoomBy(1 / 1.5)),
            { "aria-label": "Zoom out" },
        ),
        button(
            "Fit",
            each((view) => view.fit()),
            { "aria-label": "Show everything" },
        ),
    );
    const toolbar = el("div", { class: "toolbar" }, finder(store, current), ...switches(all, store), zooms);
    return section(
        "The overlay",
        null,
        toolbar,
        el("div", { class: "stage" }, maps, panel(store, current, all)),
        legend(store),
    );
}

/** The buttons that choose what the map shows. */
function switches(all: Graph[], store: Store): HTMLElement[] {
    const parts: HTMLElement[] = [];
    if (all.length > 1) {
        parts.push(
            choices(
                "Plan",
                all.map((graph, i) => [
                    graph.plan.name,
                    () => store.state.plan === i && !store.state.sideBySide,
                    () => store.set({ plan: i, sideBySide: false }),
                ]),
                store,
            ),
        );
        parts.push(
            choices(
                "Maps",
                [
                    [
                        "side by side",
                        () => store.state.sideBySide,
                        () => store.set({ sideBySide: !store.state.sideBySide }),
                    ],
                ],
                store,
            ),
        );
    }
    parts.push(
        choices(
            "Links by",
            [
                ["load", () => store.state.linksBy === "load", () => store.set({ linksBy: "load" })],
                ["weight", () => store.state.linksBy === "weight", () => store.set({ linksBy: "weight" })],
            ],
            store,
        ),
    );
    if (all.some((graph) => graph.interest.places.kind !== "none"))
        parts.push(
            choices(
                "Layout",
                [
                    [
                        all[0]!.interest.places.kind === "map" ? "map" : "places",
                        () => store.state.layout === "places",
                        () => store.set({ layout: "places" }),
                    ],
                    ["forces", () => store.state.layout === "forces", () => store.set({ layout: "forces" })],
                ],
                store,
            ),
        );
    return parts;
}

function choices(label: string, options: [string, () => boolean, () => void][], store: Store): HTMLElement {
    const buttons = options.map(([name, on, act]) => button(name, act, { "aria-pressed": String(on()) }));
    store.onChange(() =>
        buttons.forEach((one, i) => one.setAttribute("aria-pressed", String(options[i]![1]()))),
    );
    return el(
        "div",
        { class: "group", role: "group", "aria-label": label },
        el("span", { class: "label" }, label),
        ...buttons,
    );
}

function legend(store: Store): HTMLElement {
    const line = el("p", { class: "legend" });
    const words: Record<string, () => (Node | string)[]> = {
        nothing: () => [
            `Thicker links have more ${store.state.linksBy === "load" ? "load: more topics go over them" : "weight"}; larger brokers have more links.`,
        ],
        topic: () => [key("accent", false), "the topic's tree", key("accent", true), "its other links"],
        broker: () => [key("accent", false), "links of the broker"],
        failure: () => [key("bad", true), "links lost", key("good", false), "links that mend it"],
        change: () => [key("good", false), "links added", key("bad", true), "links removed"],
    };
    const show = (): void =>
        line.replaceChildren(
            ...words[store.state.choice.kind]!(),
            el(
                "span",
                { class: "keys" },
                "Keys: / find, arrows move, + − zoom, 0 fit, n p next broker, Esc close. The wheel zooms once the map is clicked.",
            ),
        );
    store.onChange(show);
    show();
    return line;
}

const key = (colour: string, dashed: boolean): HTMLElement =>
    el("span", { class: `key ${colour}${dashed ? " dashed" : ""}`, "aria-hidden": "true" });

start();
