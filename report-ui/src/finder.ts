// A box to find a topic or a broker in: type, go through what matches with the arrow keys, take it with Enter.

import { el } from "./dom";
import type { Graph } from "./graph";
import type { Choice, Store } from "./state";

const MOST = 40;

interface Match {
    name: string;
    kind: "topic" | "broker";
    note: string;
}

export function finder(store: Store, graph: () => Graph): HTMLElement {
    const list = el("ul", {
        role: "listbox",
        id: "matches",
        "aria-label": "Topics and brokers that match",
        hidden: true,
    });
    const input = el("input", {
        type: "text",
        id: "find",
        role: "combobox",
        placeholder: "Find a topic or a broker",
        autocomplete: "off",
        spellcheck: "false",
        "aria-label": "Find a topic or a broker",
        "aria-expanded": "false",
        "aria-controls": "matches",
        "aria-autocomplete": "list",
    });
    let matches: Match[] = [];
    let active = -1;

    const close = (): void => {
        list.hidden = true;
        active = -1;
        input.setAttribute("aria-expanded", "false");
        input.removeAttribute("aria-activedescendant");
    };
    const take = (match: Match): void => {
        const choice: Choice =
            match.kind === "topic"
                ? { kind: "topic", topic: match.name }
                : { kind: "broker", broker: match.name };
        store.choose(choice);
        input.value = match.name;
        close();
    };
    const mark = (i: number): void => {
        active = i;
        [...list.children].forEach((item, j) => item.setAttribute("aria-selected", String(i === j)));
        const item = list.children[i];
        if (item) {
            item.scrollIntoView({ block: "nearest" });
            input.setAttribute("aria-activedescendant", item.id);
        }
    };
    const open = (): void => {
        matches = search(graph(), input.value);
        list.replaceChildren(
            ...matches.map((match, i) =>
                el(
                    "li",
                    {
                        role: "option",
                        id: `match-${i}`,
                        "aria-selected": "false",
                        pointerdown: (event: Event) => (event.preventDefault(), take(match)),
                    },
                    el("span", {}, match.name),
                    el("small", {}, match.note),
                ),
            ),
        );
        list.hidden = matches.length === 0;
        input.setAttribute("aria-expanded", String(matches.length > 0));
        active = -1;
    };
    input.addEventListener("input", open);
    input.addEventListener("focus", () => (input.select(), open()));
    input.addEventListener("blur", close);
    input.addEventListener("keydown", (event) => {
        if (event.key === "ArrowDown" || event.key === "ArrowUp") {
            if (list.hidden) open();
            const by = event.key === "ArrowDown" ? 1 : -1;
            if (matches.length) mark((active + by + matches.length) % matches.length);
            event.preventDefault();
        } else if (event.key === "Enter" && matches.length && !list.hidden) {
            take(matches[Math.max(0, active)]!);
        } else if (event.key === "Escape" && !list.hidden) {
            close();
            event.stopPropagation();
        }
    });
    store.onChange(({ choice }) => {
        if (choice.kind === "nothing") input.value = "";
    });
    return el("div", { class: "finder" }, input, list);
}

/** What matches a text: names that begin with it first, then those that have it inside. */
function search(graph: Graph, text: string): Match[] {
    const wanted = text.trim().toLowerCase();
    const { topics, brokers, start } = graph.interest;
    const found: [Match[], Match[]] = [[], []];
    const look = (names: string[], kind: Match["kind"], note: (i: number) => string): void => {
        for (let i = 0; i < names.length && found[0].length < MOST * 2; i++) {
            const at = names[i]!.toLowerCase().indexOf(wanted);
            const into = found[at === 0 ? 0 : 1];
            if (at >= 0 && into.length < MOST * 2) into.push({ name: names[i]!, kind, note: note(i) });
        }
    };
    look(brokers, "broker", (b) => `broker, ${graph.near[b]!.length} links`);
    const half = found.map((part) => part.splice(0, MOST / 2)) as [Match[], Match[]];
    found[0].length = found[1].length = 0;
    look(topics, "topic", (t) => `topic, ${start[t + 1]! - start[t]!} brokers`);
    return [...half[0], ...found[0], ...half[1], ...found[1]].slice(0, MOST);
}
