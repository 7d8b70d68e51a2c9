// Files that the reader takes along: tables as CSV, pictures as SVG and PNG.

import { colours } from "./theme";

/** Give the reader a file. */
export function download(name: string, content: BlobPart, type: string): void {
    const url = URL.createObjectURL(new Blob([content], { type }));
    const link = document.createElement("a");
    link.href = url;
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Text of a CSV file: fields with commas, quotes or line ends are quoted.
 *
 * A text that a spreadsheet would take for a formula gets an apostrophe in front. */
export function toCsv(header: string[], rows: Iterable<(string | number | null)[]>): string {
    const field = (value: string | number | null): string => {
        if (value === null) return "";
        if (typeof value === "number") return String(value);
        const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
        return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    const lines = [header.map(field).join(",")];
    for (const row of rows) lines.push(row.map(field).join(","));
    return `${lines.join("\r\n")}\r\n`;
}

/** A chart as a file: the colours of the style sheet become values. */
export function svgText(drawn: SVGElement): string {
    const copy = drawn.cloneNode(true) as SVGElement;
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.style.color = colours().ink;
    copy.style.fontFamily = "system-ui, sans-serif";
    const palette = colours() as unknown as Record<string, string>;
    return `${new XMLSerializer()
        .serializeToString(copy)
        .replace(/var\(--([a-z]+)\)/g, (all, name: string) => palette[name] ?? all)}\n`;
}

/** A title as the beginning of a file's name. */
export const fileName = (title: string): string =>
    title
        .normalize("NFKD")
        .replace(/[^A-Za-z0-9]+/g, "-")
        .replace(/^-+|-+$/g, "")
        .toLowerCase()
        .slice(0, 60) || "report";
