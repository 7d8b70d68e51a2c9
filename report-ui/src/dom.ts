// Elements from names, attributes and children. Text only ever becomes text: nothing here parses HTML.

type Child = Node | string | number | null | undefined | false;
type Attributes = Record<string, string | number | boolean | ((event: never) => void) | undefined>;

export function el<K extends keyof HTMLElementTagNameMap>(
    tag: K,
    attributes: Attributes = {},
    ...children: Child[]
): HTMLElementTagNameMap[K] {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
        if (typeof value === "function") element.addEventListener(name, value as unknown as EventListener);
        else if (value === true) element.setAttribute(name, "");
        else if (value !== false && value !== undefined) element.setAttribute(name, String(value));
    }
    for (const child of children) {
        if (child instanceof Node) element.append(child);
        else if (child !== null && child !== undefined && child !== false) element.append(String(child));
    }
    return element;
}

export function button(label: Child, act: () => void, attributes: Attributes = {}): HTMLButtonElement {
    return el("button", { type: "button", click: act, ...attributes }, label);
}

/** A section of the page with a heading, and a line that says what it shows. */
export function section(heading: string, words: Child, ...children: Child[]): HTMLElement {
    return el(
        "section",
        { class: "card" },
        el("h2", {}, heading),
        words && el("p", { class: "words" }, words),
        ...children,
    );
}

/** A cell of a table; a number can come with its own text. */
export type Cell = Child | { number: string };

const isNumber = (cell: Cell): cell is number | { number: string } =>
    typeof cell === "number" || (cell !== null && typeof cell === "object" && "number" in cell);

function heading(name: string, below: Cell): HTMLElement {
    return name ? el("th", { scope: "col", class: isNumber(below) ? "number" : undefined }, name) : el("td");
}

/** A table with a header; numbers are set right. */
export function table(caption: string, header: string[], rows: Cell[][]): HTMLElement {
    const body = rows.map((row) =>
        el(
            "tr",
            {},
            ...row.map((cell) => {
                return el(
                    "td",
                    { class: isNumber(cell) ? "number" : undefined },
                    typeof cell === "number" ? num(cell) : isNumber(cell) ? cell.number : cell,
                );
            }),
        ),
    );
    return el(
        "div",
        { class: "scroll", tabindex: 0, role: "group", "aria-label": caption },
        el(
            "table",
            {},
            el("caption", {}, caption),
            el("thead", {}, el("tr", {}, ...header.map((name, i) => heading(name, rows[0]?.[i])))),
            el("tbody", {}, ...body),
        ),
    );
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const digits = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

/** A number as people read it: thousands apart; four digits of fractions, and whole from 1,000 on. */
export function num(value: number | null | undefined): string {
    if (value === null || value === undefined) return "–";
    return Number.isInteger(value) || Math.abs(value) >= 1000 ? whole.format(value) : digits.format(value);
}

/** "1 link", "3 links". */
export function count(n: number, one: string, many = `${one}s`): string {
    return `${num(n)} ${n === 1 ? one : many}`;
}

/** A difference with its sign. */
export function signed(value: number): string {
    return value > 0 ? `+${num(value)}` : value < 0 ? `−${num(-value)}` : "0";
}

export function percent(part: number): string {
    return `${(100 * part).toFixed(1)} %`;
}
