// Dark and light: as the system says, until the reader chooses. The canvas asks here for the colours of the style sheet.

export interface Colours {
    sea: string;
    ground: string;
    coast: string;
    link: string;
    broker: string;
    paper: string;
    ink: string;
    quiet: string;
    accent: string;
    good: string;
    bad: string;
}

const NAMES: (keyof Colours)[] = [
    "sea",
    "ground",
    "coast",
    "link",
    "broker",
    "paper",
    "ink",
    "quiet",
    "accent",
    "good",
    "bad",
];
const listeners: (() => void)[] = [];
let cached: Colours | null = null;

export function colours(): Colours {
    if (cached === null) {
        const probe = document.body.appendChild(document.createElement("span")); // resolves light-dark() to a colour
        const resolved = NAMES.map((name) => {
            probe.style.color = `var(--${name})`;
            return [name, getComputedStyle(probe).color];
        });
        probe.remove();
        cached = Object.fromEntries(resolved) as Colours;
    }
    return cached;
}

export function onTheme(listener: () => void): void {
    listeners.push(listener);
}

export function isDark(): boolean {
    return (
        (document.documentElement.dataset["theme"] ??
            (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark"
    );
}

export function setTheme(theme: "dark" | "light" | null): void {
    if (theme === null) delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = theme;
    changed();
}

function changed(): void {
    cached = null;
    for (const listener of listeners) listener();
}

/** Follow the system, and print on white paper. */
export function watchTheme(): void {
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
    let before: "dark" | "light" | null = null;
    addEventListener("beforeprint", () => {
        before = (document.documentElement.dataset["theme"] as "dark" | "light" | undefined) ?? null;
        setTheme("light");
    });
    addEventListener("afterprint", () => setTheme(before));
}
