// A box to find a broker, a topic or a site in: type words, go through the matches with the arrow keys, choose with Enter.

import { count, el } from "./dom";
import type { Graph } from "./graph";
import { siteSizes } from "./panel";
import type { Choice, Store } from "./state";

const MOST = 40;

interface Match {
    name: string;
    kind: "topic" | "broker" | "site";
    note: string;
}

export function finder(store: Store, graph: () => Graph): HTMLElement {
    const list = el("ul", { role: "listbox", id: "matches", "aria-label": "Matches", hidden: true });
    const input = el("input", {
        type: "text",
        id: "find",
        role: "combobox",
        placeholder: "Find a broker, topic or site",
        autocomplete: "off",
        spellcheck: "false",
        "aria-label": "Find a broker, topic or site",
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
        const choices: Record<Match["kind"], Choice> = {
            topic: { kind: "topic", topic: match.name },
            broker: { kind: "broker", broker: match.name },
            site: { kind: "site", site: match.name },
        };
        store.choose(choices[match.kind], { move: true });
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

/** The words of a text, in lower case. */
export const wordsOf = (text: string): string[] => text.toLowerCase().split(/\s+/).filter(Boolean);

/** What matches: every word is in the name, or for a broker in the name of its site. Exact names are first, then those
 * that begin with the text, then the others. */
function search(graph: Graph, text: string): Match[] {
    const whole = text.trim().toLowerCase();
    const words = wordsOf(text);
    const { topics, brokers, sites } = graph.interest;
    const sizes = siteSizes(graph);
    const ranks: Match[][] = [[], [], []];
    const look = (
        kind: Match["kind"],
        all: string[],
        more: (i: number) => string,
        note: (i: number) => string,
    ): void => {
        const room = [MOST, MOST, MOST];
        for (let i = 0; i < all.length; i++) {
            const name = all[i]!;
            const own = name.toLowerCase();
            if (!name && kind === "site") continue;
            const rank = own === whole ? 0 : own.startsWith(whole) ? 1 : 2;
            if (room[rank]! <= 0) continue;
            if (rank === 2) {
                const wider = `${own} ${more(i).toLowerCase()}`;
                if (!words.every((word) => wider.includes(word))) continue;
            }
            room[rank]!--;
            ranks[rank]!.push({ name, kind, note: note(i) });
        }
    };
    look(
        "site",
        sites,
        () => "",
        (i) => `site, ${count(sizes[i]!, "broker")}`,
    );
    look(
        "broker",
        brokers,
        (b) => graph.site(b),
        (b) => ["broker", graph.site(b)].filter(Boolean).join(", "),
    );
    look(
        "topic",
        topics,
        () => "",
        (t) => `topic, ${count(graph.memberCount(t), "broker")}`,
    );
    return ranks.flatMap((rank) => mixed(rank)).slice(0, MOST);
}

/** Matches of the kinds in turn, so that many of one do not hide the others. */
function mixed(matches: Match[]): Match[] {
    const kinds = (["site", "broker", "topic"] as const).map((kind) =>
        matches.filter((one) => one.kind === kind),
    );
    return Array.from({ length: Math.max(...kinds.map((kind) => kind.length)) }, (_, i) =>
        kinds.flatMap((kind) => kind[i] ?? []),
    ).flat();
}
