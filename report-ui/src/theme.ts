// Dark and light: as the system says, until the reader chooses; forced colours always. The canvas asks here for the colours of the style sheet.

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
        // Resolves light-dark() and system colours to values; forced colours would make all of them the same.
        const probe = document.body.appendChild(document.createElement("span"));
        probe.style.setProperty("forced-color-adjust", "none");
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

/** Forget the listeners of a page that is replaced. */
export function forgetListeners(): void {
    listeners.length = 0;
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
    for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"])
        matchMedia(query).addEventListener("change", changed);
    let before: "dark" | "light" | null = null;
    addEventListener("beforeprint", () => {
        before = (document.documentElement.dataset["theme"] as "dark" | "light" | undefined) ?? null;
        setTheme("light");
    });
    addEventListener("afterprint", () => setTheme(before));
}
