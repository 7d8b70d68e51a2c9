// Content plans: filters as rectangles over the subscriptions, loads against limits, delays; and markets.

import * as Plot from "@observablehq/plot";
import { certificate, chart, settings } from "./charts";
import { measured } from "./compare";
import { button, count, el, num, percent, section, table } from "./dom";
import { facts, top } from "./panel";
import type { ContentRecord, MarketRecord } from "./record";
import { colours, onTheme } from "./theme";

const MOST_BARS = 60;
const MARGIN = 44;

export function contentView(plan: ContentRecord): HTMLElement[] {
    return [
        filters(plan),
        el("div", { class: "cards" }, loads(plan), delays(plan)),
        el("div", { class: "cards" }, certificate(plan), settings(plan)),
        measured(plan),
    ];
}

/** The filters of the brokers over what subscribers want, on two axes of event space. */
function filters(plan: ContentRecord): HTMLElement {
    let chosen = -1;
    const axes = Array.from({ length: plan.dimensions }, (_, axis) => axis);
    const picked = [0, Math.min(1, plan.dimensions - 1)];
    const canvas = el("canvas", {
        role: "img",
        "aria-label": `Filters of ${count(plan.brokers.length, "broker")} over ${count(plan.subscriptions.inAll, "subscription")}`,
    });
    const box = el("div", { class: "map content" }, canvas);
    const about = el("div", { class: "about", "aria-live": "polite" });
    const show = (): void => {
        draw(canvas, box, plan, picked[0]!, picked[1]!, chosen);
        about.replaceChildren(...describe(plan, chosen));
        for (const item of list.querySelectorAll("button"))
            item.setAttribute("aria-pressed", String(Number(item.dataset["broker"]) === chosen));
    };
    const choose = (broker: number): void => {
        chosen = broker === chosen ? -1 : broker;
        show();
    };
    const order = top(plan.load, plan.brokers.length).filter((b) => plan.filters[b]!.length);
    const list = el(
        "div",
        { class: "names", role: "group", "aria-label": "Brokers" },
        ...order.slice(0, 200).map((b) =>
            button(plan.brokers[b]!, () => choose(b), {
                class: "name",
                "data-broker": b,
                "aria-pressed": "false",
            }),
        ),
    );
    const axis = (side: number, label: string): HTMLElement =>
        el(
            "label",
            {},
            `${label} `,
            el(
                "select",
                {
                    change: (event: Event) => (
                        (picked[side] = Number((event.target as HTMLSelectElement).value)),
                        show()
                    ),
                },
                ...axes.map((a) => el("option", { value: a, selected: picked[side] === a }, `axis ${a + 1}`)),
            ),
        );
    new ResizeObserver(show).observe(box);
    onTheme(show);
    const sample =
        plan.subscriptions.broker.length < plan.subscriptions.inAll
            ? ` A sample of ${num(plan.subscriptions.broker.length)} subscriptions is drawn.`
            : "";
    const words = `A broker forwards the messages in its rectangles.${sample}`;
    return section(
        "Filters",
        words,
        plan.dimensions > 1 ? el("div", { class: "toolbar" }, axis(0, "Across"), axis(1, "Up")) : null,
        el(
            "div",
            { class: "stage" },
            box,
            el("div", { class: "panel" }, about, el("h3", {}, "Brokers, by load"), list),
        ),
    );
}

function describe(plan: ContentRecord, broker: number): Node[] {
    if (broker < 0)
        return [
            el("h3", {}, "All brokers"),
            el(
                "p",
                { class: "words" },
                "Choose a broker to see its filter, and the subscriptions that it serves.",
            ),
        ];
    const fair = plan.fairLoad[broker]!;
    return [
        el("h3", {}, plan.brokers[broker]!),
        facts(
            ["Rectangles", num(plan.filters[broker]!.length)],
            ["Subscribers", num(plan.load[broker])],
            ["Load per fair share", fair ? num(plan.load[broker]! / fair) : "–"],
            ["Parent", plan.parent[broker]! < 0 ? "the publisher" : plan.brokers[plan.parent[broker]!]!],
        ),
    ];
}

function draw(
    canvas: HTMLCanvasElement,
    box: HTMLElement,
    plan: ContentRecord,
    ax: number,
    ay: number,
    chosen: number,
): void {
    const [width, height] = [box.clientWidth, box.clientHeight];
    if (!width) return;
    canvas.width = width * devicePixelRatio;
    canvas.height = height * devicePixelRatio;
    const context = canvas.getContext("2d")!;
    const palette = colours();
    context.scale(devicePixelRatio, devicePixelRatio);
    const line = plan.dimensions === 1;
    const { lo, hi, broker } = plan.subscriptions;
    const boxes = plan.filters.flat();
    const range = (axis: number): [number, number] => [
        Math.min(...boxes.map(([low]) => low[axis]!), ...lo.map((row) => row[axis]!)),
        Math.max(...boxes.map(([, high]) => high[axis]!), ...hi.map((row) => row[axis]!)),
    ];
    const [[left, right], [low, high]] = [range(ax), range(ay)];
    const x = (value: number): number =>
        MARGIN + ((value - left) / (right - left || 1)) * (width - 2 * MARGIN);
    const y = (value: number): number =>
        height - MARGIN - ((value - low) / (high - low || 1)) * (height - 2 * MARGIN);
    // On one axis each broker has a line of its own.
    const row = (b: number): [number, number] => [
        MARGIN + (b / plan.brokers.length) * (height - 2 * MARGIN),
        (0.7 * (height - 2 * MARGIN)) / plan.brokers.length,
    ];
    const rectangle = (from: number[], to: number[], b: number): [number, number, number, number] =>
        line
            ? [x(from[0]!), row(b)[0], x(to[0]!) - x(from[0]!), row(b)[1]]
            : [x(from[ax]!), y(to[ay]!), x(to[ax]!) - x(from[ax]!), y(from[ay]!) - y(to[ay]!)];
    context.fillStyle = palette.paper;
    context.fillRect(0, 0, width, height);
    const faint = Math.max(0.02, Math.min(0.25, 20 / Math.max(1, lo.length)));
    for (let i = 0; i < lo.length; i++) {
        const mine = broker[i] === chosen;
        if (chosen >= 0 && !mine) continue;
        context.globalAlpha = mine ? Math.min(0.3, faint * 4) : faint;
        context.fillStyle = mine ? palette.accent : palette.broker;
        context.fillRect(...rectangle(lo[i]!, hi[i]!, broker[i]!));
    }
    plan.filters.forEach((own, b) => {
        context.globalAlpha = chosen < 0 ? 0.7 : b === chosen ? 1 : 0.15;
        context.strokeStyle = b === chosen ? palette.accent : palette.link;
        context.lineWidth = b === chosen ? 2.5 : 1;
        for (const [from, to] of own) context.strokeRect(...rectangle(from, to, b));
    });
    context.globalAlpha = 1;
    context.fillStyle = palette.quiet;
    context.font = "12px system-ui, sans-serif";
    context.fillText(num(left), MARGIN, height - 16);
    context.fillText(num(right), width - MARGIN - 24, height - 16);
    if (!line) {
        context.fillText(num(low), 8, height - MARGIN);
        context.fillText(num(high), 8, MARGIN + 8);
    }
}

function loads(plan: ContentRecord): HTMLElement {
    const all = plan.leaves
        .map((b) => ({
            broker: plan.brokers[b]!,
            ratio: plan.fairLoad[b] ? plan.load[b]! / plan.fairLoad[b]! : 0,
            load: plan.load[b]!,
        }))
        .sort((a, b) => b.ratio - a.ratio);
    const shown = all.slice(0, MOST_BARS);
    const over = all.filter((one) => one.ratio > plan.betaMax).length;
    const words =
        `The busiest broker has ${num(all[0]?.ratio ?? 0)} times its fair share; ${num(plan.beta)} is desired, ${num(plan.betaMax)} is the limit` +
        (over ? `: ${count(over, "broker is", "brokers are")} above.` : ".") +
        (all.length > MOST_BARS ? ` The busiest ${MOST_BARS} of ${num(all.length)} are shown.` : "");
    return section(
        "Loads and their limits",
        words,
        chart(words, {
            marginBottom: 20,
            x: { axis: null, domain: shown.map((one) => one.broker) },
            y: { label: "times the fair share", grid: true, zero: true },
            marks: [
                Plot.barY(shown, {
                    x: "broker",
                    y: "ratio",
                    fill: (d: { ratio: number }) => (d.ratio > plan.betaMax ? "var(--bad)" : "var(--accent)"),
                    title: (d: { broker: string; load: number; ratio: number }) =>
                        `${d.broker}: ${num(d.load)} subscribers, ${num(d.ratio)} times its share`,
                }),
                Plot.ruleY([plan.beta], { stroke: "var(--quiet)", strokeDasharray: "4 4" }),
                Plot.ruleY([plan.betaMax], { stroke: "var(--bad)" }),
                Plot.text(
                    [
                        { y: plan.beta, text: "desired" },
                        { y: plan.betaMax, text: "limit" },
                    ],
                    {
                        y: "y",
                        text: "text",
                        frameAnchor: "right",
                        textAnchor: "end",
                        dy: -7,
                        fill: "var(--ink)",
                    },
                ),
            ],
        }),
    );
}

function delays(plan: ContentRecord): HTMLElement {
    const { counts, edges, over, limit, absolute } = plan.delays;
    const bars = counts.map((n, i) => ({ from: edges[i]!, to: edges[i + 1]!, n }));
    const words = over
        ? `${count(over, "subscriber is", "subscribers are")} above the limit on latency.`
        : "Every subscriber is within its limit on latency.";
    return section(
        "Delays",
        `${words} A delay of 0.1 is a latency that is 10 % above the shortest possible.`,
        chart(`Distribution of delays. ${words}`, {
            x: { label: "delay" },
            y: { label: "subscribers", grid: true, tickFormat: "~s" },
            marks: [
                Plot.rectY(bars, { x1: "from", x2: "to", y: "n", fill: "var(--accent)", inset: 0.5 }),
                Plot.ruleX(absolute ? [] : [limit], { stroke: "var(--bad)" }),
                Plot.ruleY([0]),
            ],
        }),
    );
}

export function marketView(plan: MarketRecord): HTMLElement[] {
    const order = top(plan.load, MOST_BARS);
    const busiest = order.map((b) => ({ broker: plan.brokers[b]!, users: plan.load[b]! }));
    const cost = (name: string): number => Number(plan.metrics[name] ?? 0);
    const flows = top(plan.flows.rate, 12).map((i) => [
        plan.brokers[plan.flows.u[i]!]!,
        plan.brokers[plan.flows.v[i]!]!,
        plan.flows.rate[i]!,
    ]);
    const words = `Access links cost ${num(cost("access_cost"))}, core links ${num(cost("core_cost"))}: the core is ${percent(cost("core_cost") / (cost("cost") || 1))} of the total.`;
    const users = chart(`Users of each broker, the busiest ${busiest.length}`, {
        x: { axis: null, domain: busiest.map((one) => one.broker) },
        y: { label: "users", grid: true },
        marks: [
            Plot.barY(busiest, {
                x: "broker",
                y: "users",
                fill: "var(--accent)",
                title: (d: { broker: string; users: number }) => `${d.broker}: ${num(d.users)} users`,
            }),
            Plot.ruleY([0]),
        ],
    });
    return [
        el(
            "div",
            { class: "cards" },
            section("Users per broker", words, users),
            section(
                "Flows between brokers",
                `${count(plan.flows.u.length, "core link carries", "core links carry")} traffic.`,
                table("The busiest core links", ["from", "to", "rate"], flows),
            ),
        ),
        el("div", { class: "cards" }, certificate(plan), settings(plan)),
        measured(plan),
    ];
}
