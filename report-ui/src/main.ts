// The page: reads its record, and shows it.

import { fromAddress, watchAddress } from "./address";
import { bottlenecks, certificate, degrees, diameters, lengths, settings, sites } from "./charts";
import { notCarried } from "./carried";
import { changes, comparison, measured } from "./compare";
import { ConsoleView } from "./console";
import { contentView, marketView } from "./content";
import { button, el, num, percent, section } from "./dom";
import { download, fileName } from "./exports";
import { finder } from "./finder";
import { FleetView, type FleetRecord } from "./fleet";
import { graphs, type Graph } from "./graph";
import { forgetMaps, MapView } from "./map";
import { disconnected, panel, spoken, topicButton } from "./panel";
import type { AnyPlan, Report } from "./record";
import { rows } from "./rows";
import { Store, type State } from "./state";
import { tables } from "./tables";
import { forgetListeners, isDark, onTheme, setTheme, watchTheme } from "./theme";

const MOST_MAPS = 4;
const MOST_TOPICS = 12;

let replaced = new AbortController(); // ends the listeners of a page that is replaced
let store: Store;
let shown: Graph[] = [];
let consoleView: ConsoleView | null = null;
let fleetView: FleetView | null = null;

function start(): void {
    const report = JSON.parse(document.getElementById("record")!.textContent!) as Report;
    watchTheme();
    document.getElementById("top")!.append(themeButton());
    const settings = document.getElementById("console")?.textContent;
    if (settings) {
        const found = JSON.parse(settings) as ConsoleSettings;
        const view = new ConsoleView(found, {
            mount: (record, choice) => mount(record, { ...store.state, choice }),
            store: () => store,
            graph: () => shown[store.state.plan] ?? null,
        });
        consoleView = view;
        if (found.fleet)
            fleetView = new FleetView(found.fleet, {
                ask: (path) => view.ask(path),
                store: () => store,
                renewed: () => void view.reload(),
                restart: () => view.restartButton(),
            });
    }
    mount(report, null);
    document.documentElement.dataset["ready"] = "true";
    setTimeout(() => shown.forEach((graph) => graph.byWeight()), 400); // before the first topic is chosen
}

type ConsoleSettings = ConstructorParameters<typeof ConsoleView>[0] & { fleet: FleetRecord | null };

/** Show a record; a state that is given stays as it is. */
function mount(report: Report, state: State | null): void {
    replaced.abort();
    replaced = new AbortController();
    const { signal } = replaced;
    forgetListeners();
    forgetMaps();
    onTheme(() => (document.getElementById("theme")!.textContent = themeLabel()));
    const all = graphs(report);
    shown = all;
    const places = all.some((graph) => graph.interest.places.kind !== "none");
    const first: State = {
        choice: { kind: "nothing" },
        plan: 0,
        sideBySide: false,
        linksBy: "load",
        layout: places ? "places" : "forces",
        table: { name: "brokers", sort: "", down: false, filter: "", page: 0 },
        window: null,
        fleet: fleetView?.record ?? null,
    };
    store = new Store(state ?? fromAddress(location.hash, first, all.length));
    watchAddress(store, first, all.length, signal);
    const main = document.getElementById("report")!;
    const lasting = [fleetView?.element, consoleView?.element].filter((one) => one !== undefined);
    const { activeElement: focused } = document;
    const within = (selector: string): string | null => (focused?.closest(selector) ? selector : null);
    const place = within("#panel") ?? within(".map canvas") ?? within("#tables");
    for (const child of [...main.children]) if (!lasting.includes(child as HTMLElement)) child.remove();
    for (const one of lasting) if (!one.isConnected) main.append(one);
    const summary = document.getElementById("summary")!;
    if (consoleView) summary.replaceChildren(...report.plans.map((plan) => el("p", {}, plan.summary)));
    for (const kind of ["overlay", "content", "market"]) {
        const alike = report.plans.filter((plan) => plan.kind === kind);
        if (alike.length > 1) main.append(comparison(alike));
    }
    if (all.length > 1) main.append(changes(all, store));
    if (all.length) main.append(overlayView(all, store, report));
    if (fleetView && consoleView) main.append(consoleView.element); // the map is next to what it shows
    for (const plan of report.plans) {
        if (plan.kind === "overlay") continue;
        if (report.plans.length > 1) main.append(el("h2", { class: "plan" }, plan.name));
        main.append(...(plan.kind === "content" ? contentView(plan) : marketView(plan)));
    }
    if (report.rows) main.append(rows(report.rows));
    const requests = consoleView
        ? "This page sends requests to broadloom serve on this machine only."
        : "This page sends no requests.";
    main.append(
        el("footer", {}, sources(report), el("p", {}, `Made by Broadloom ${report.broadloom}. ${requests}`)),
    );
    document.addEventListener(
        "keydown",
        (event) => {
            const typing = event.target instanceof HTMLInputElement;
            if (event.key === "Escape" && store.state.choice.kind !== "nothing")
                store.choose({ kind: "nothing" }, {});
            else if (event.key === "/" && !typing) {
                document.getElementById("find")?.focus();
                event.preventDefault();
            }
        },
        { signal },
    );
    keepFocus(focused, place);
}

/** After the page was replaced: put the focus where it was, or on what took the place of it. */
function keepFocus(focused: Element | null, place: string | null): void {
    if (!(focused instanceof HTMLElement) || focused === document.body) return;
    if (focused.isConnected) return focused.focus({ preventScroll: true });
    const same = focused.id ? document.getElementById(focused.id) : null;
    const heading = place === "#panel" ? document.querySelector<HTMLElement>("#panel h3") : null;
    const other = place ? document.querySelector<HTMLElement>(`${place} button, ${place}[tabindex]`) : null;
    (same ?? heading ?? other)?.focus({ preventScroll: true });
}

const themeLabel = (): string => (isDark() ? "Light" : "Dark");

function themeButton(): HTMLElement {
    return button(themeLabel(), () => setTheme(isDark() ? "light" : "dark"), {
        id: "theme",
        class: "act small",
    });
}

/** Where the plans are from, when they were written, and in which unit weights are. */
function sources(report: Report): HTMLElement {
    const line = (plan: AnyPlan): string =>
        `${plan.name}: ${plan.source ? `from ${plan.source}` : "from memory"}${plan.written ? `, written ${plan.written}` : ""}.`;
    return el(
        "ul",
        { id: "sources" },
        ...report.plans.map((plan) => el("li", {}, line(plan))),
        el(
            "li",
            {},
            report.unit
                ? `Weights are in ${report.unit}.`
                : "Weights have the unit of the plan's input: milliseconds if they come from a table of latencies.",
            " Loads are numbers of topics, paths numbers of hops.",
        ),
    );
}

function overlayView(all: Graph[], store: Store, report: Report): HTMLElement {
    const current = (): Graph => all[store.state.plan]!;
    const details = el("div", { class: "cards" });
    const tiles = el("ul", { class: "tiles", "aria-label": "The plan in numbers" });
    const name = el("h2", { class: "plan", hidden: all.length < 2 });
    const missing = el("div", {});
    const show = (): void => {
        const graph = current();
        name.textContent = graph.plan.name;
        tiles.replaceChildren(...tilesOf(graph));
        missing.replaceChildren(
            ...notConnected(store, graph),
            ...notCarried(graph.plan, disconnected(graph).length > 0),
        );
        const parts = [
            degrees(graph),
            diameters(graph),
            lengths(graph, report.unit),
            bottlenecks(graph, store),
            sites(graph),
            certificate(graph.plan),
            settings(graph.plan),
            all.length > 1 ? null : measured(graph.plan),
        ];
        details.replaceChildren(...parts.filter((part): part is HTMLElement => part !== null));
    };
    store.onChange((state, before) => {
        if (state.plan !== before.plan) show();
    });
    show();
    return el(
        "div",
        {},
        name,
        tiles,
        missing,
        mapSection(all, store, current, report),
        tables(store, current, report.title, report.unit),
        details,
    );
}

/** The names of the topics that are not connected, if there are any. */
function notConnected(store: Store, graph: Graph): HTMLElement[] {
    const broken = disconnected(graph);
    if (!broken.length) return [];
    const shown = broken.slice(0, MOST_TOPICS);
    const parts = shown.map((topic) =>
        el("li", {}, topicButton(store, graph, topic), ` in ${num(graph.partCount(topic))} parts`),
    );
    const filter = button(
        "All of them in the table",
        () => {
            store.set({
                table: { name: "topics", sort: "", down: false, filter: "NOT connected", page: 0 },
            });
            document.getElementById("tables")?.scrollIntoView();
            document.getElementById("filter")?.focus({ preventScroll: true });
        },
        { class: "act small" },
    );
    const made = section(
        "Topics that are NOT connected",
        "Some brokers of these topics have no path of links among the topic's brokers: messages do not reach all subscribers.",
        el("ul", { class: "broken" }, ...parts),
        filter,
    );
    made.id = "not-connected";
    return [made];
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
        tile(num(m["max_degree"]), "most links on one broker"),
        tile(num(m["max_diameter"]), "hops on the longest path of a topic"),
        plan.certificate.gap === null
            ? tile(num(m["total_weight"]), "total weight")
            : tile(percent(plan.certificate.gap), "above the best possible, at most"),
    ];
}

function mapSection(all: Graph[], store: Store, current: () => Graph, report: Report): HTMLElement {
    const note = el("span", { class: "crowd" });
    const tell = (): void => {
        const view = viewOf(store.state.plan);
        const clustered = view.clustered
            ? "A numbered mark is several brokers, a line between marks all their links: click or zoom in. "
            : "";
        const left = view.leftOut ? `${num(view.leftOut)} thin lines are not drawn. ` : "";
        note.textContent = clustered + left;
    };
    const views: MapView[] = all.slice(0, MOST_MAPS).map((graph) => new MapView(graph, all, store, tell));
    const extra = new Map<number, MapView>();
    const viewOf = (plan: number): MapView =>
        views[plan] ??
        extra.get(plan) ??
        extra.set(plan, new MapView(all[plan]!, all, store, tell)).get(plan)!;
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
            { "aria-label": "Fit the fleet into view" },
        ),
    );
    const name = (): string => fileName(`${report.title} ${all.length > 1 ? current().plan.name : ""}`);
    const save = el(
        "div",
        { class: "group", role: "group", "aria-label": "Save the map" },
        button("SVG", () => download(`${name()}.svg`, viewOf(store.state.plan).toSvg(), "image/svg+xml"), {
            "aria-label": "Save the map as SVG",
        }),
        button(
            "PNG",
            () =>
                void viewOf(store.state.plan)
                    .toPng()
                    .then((blob) => blob && download(`${name()}.png`, blob, "image/png")),
            { "aria-label": "Save the map as PNG" },
        ),
    );
    const toolbar = el(
        "div",
        { class: "toolbar" },
        finder(store, current),
        ...switches(all, store),
        zooms,
        save,
    );
    return section(
        "The overlay",
        null,
        toolbar,
        el(
            "div",
            { class: "stage" },
            maps,
            panel(store, current, all, report.unit, (choice) => [
                consoleView?.actions(choice) ?? null,
                fleetView?.about(choice) ?? null,
            ]),
        ),
        spoken,
        legend(store, note),
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
                        () => store.set({ layout: "places", window: null }),
                    ],
                    [
                        "forces",
                        () => store.state.layout === "forces",
                        () => store.set({ layout: "forces", window: null }),
                    ],
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

function legend(store: Store, note: HTMLElement): HTMLElement {
    const line = el("p", { class: "legend" });
    const words: Record<string, () => (Node | string)[]> = {
        nothing: () => [
            ...(store.state.fleet?.known
                ? [key("good", false), "hops up", key("bad", true), el("span", {}, "hops down")]
                : []),
            `Thicker links have a higher ${store.state.linksBy === "load" ? "load: they carry more topics" : "weight"}; larger brokers have more links.`,
        ],
        topic: () => [key("accent", false), "the topic's tree", key("accent", true), "its other links"],
        broker: () => [key("accent", false), "links of the broker"],
        site: () => [key("accent", false), "links of the site"],
        link: () => [key("accent", false), "the link"],
        between: () => [key("accent", false), "links between the two sites"],
        failure: () => [key("bad", true), "links lost", key("good", false), "links added by the repair"],
        effect: () => [key("good", false), "links added", key("bad", true), "links removed"],
        change: () => [key("good", false), "links added", key("bad", true), "links removed"],
    };
    const show = (): void =>
        line.replaceChildren(
            ...words[store.state.choice.kind]!(),
            note,
            el(
                "span",
                { class: "keys" },
                "Keys: / find, arrows move, + − zoom, 0 fit, n p next broker, Esc close. The wheel zooms once the map is clicked; on a touch screen two fingers move the map.",
            ),
        );
    store.onChange((state, before) => {
        const others = state.linksBy !== before.linksBy || state.fleet?.known !== before.fleet?.known;
        if (state.choice !== before.choice || others) show();
    });
    show();
    return line;
}

const key = (colour: string, dashed: boolean): HTMLElement =>
    el("span", { class: `key ${colour}${dashed ? " dashed" : ""}`, "aria-hidden": "true" });

start();
