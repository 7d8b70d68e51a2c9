// A drawing context that writes SVG, for the part of the canvas interface that the map uses.

const escaped = (text: string): string =>
    text.replace(/[&<>"]/g, (one) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[one]!);
const short = (value: number): string => String(Math.round(value * 100) / 100);

interface Saved {
    k: number;
    x: number;
    y: number;
    clip: string;
}

/** Takes the place of a CanvasRenderingContext2D. */
export class SvgContext {
    fillStyle = "#000";
    strokeStyle = "#000";
    lineWidth = 1;
    globalAlpha = 1;
    font = "12px sans-serif";
    textAlign: CanvasTextAlign = "start";
    textBaseline: CanvasTextBaseline = "alphabetic";
    lineJoin: CanvasLineJoin = "miter";
    private readonly parts: string[] = [];
    private readonly saved: Saved[] = [];
    private readonly clips: string[] = [];
    private path: string[] = [];
    private dash: number[] = [];
    private now: Saved = { k: 1, x: 0, y: 0, clip: "" };
    private readonly measure = document.createElement("canvas").getContext("2d")!;

    constructor(
        private readonly width: number,
        private readonly height: number,
    ) {}

    /** The drawing as a file. */
    toString(): string {
        const size = `width="${this.width}" height="${this.height}" viewBox="0 0 ${this.width} ${this.height}"`;
        return `<svg xmlns="http://www.w3.org/2000/svg" ${size}><defs>${this.clips.join("")}</defs>${this.parts.join("\n")}</svg>\n`;
    }

    beginPath(): void {
        this.path = [];
    }
    closePath(): void {
        this.path.push("Z");
    }
    moveTo(x: number, y: number): void {
        this.path.push(`M${this.at(x, y)}`);
    }
    lineTo(x: number, y: number): void {
        this.path.push(`L${this.at(x, y)}`);
    }
    rect(x: number, y: number, width: number, height: number): void {
        this.path.push(
            `M${this.at(x, y)}L${this.at(x + width, y)}L${this.at(x + width, y + height)}L${this.at(x, y + height)}Z`,
        );
    }
    /** A whole circle: nothing else is drawn with it. */
    arc(x: number, y: number, radius: number): void {
        const r = short(radius * this.now.k);
        this.path.push(
            `M${this.at(x - radius, y)}A${r} ${r} 0 1 0 ${this.at(x + radius, y)}A${r} ${r} 0 1 0 ${this.at(x - radius, y)}Z`,
        );
    }
    fill(): void {
        this.shape(`fill="${this.fillStyle}" stroke="none"`);
    }
    stroke(): void {
        const dash = this.dash.length ? ` stroke-dasharray="${this.dash.join(" ")}"` : "";
        this.shape(
            `fill="none" stroke="${this.strokeStyle}" stroke-width="${short(this.lineWidth * this.now.k)}"${dash}`,
        );
    }
    fillRect(x: number, y: number, width: number, height: number): void {
        this.path = [];
        this.rect(x, y, width, height);
        this.fill();
    }
    fillText(text: string, x: number, y: number): void {
        this.text(text, x, y, `fill="${this.fillStyle}"`);
    }
    strokeText(text: string, x: number, y: number): void {
        this.text(
            text,
            x,
            y,
            `fill="none" stroke="${this.strokeStyle}" stroke-width="${this.lineWidth}" stroke-linejoin="round"`,
        );
    }
    measureText(text: string): TextMetrics {
        this.measure.font = this.font;
        return this.measure.measureText(text);
    }
    setLineDash(dash: number[]): void {
        this.dash = dash;
    }
    save(): void {
        this.saved.push({ ...this.now });
    }
    restore(): void {
        this.now = this.saved.pop() ?? this.now;
    }
    translate(x: number, y: number): void {
        this.now.x += x * this.now.k;
        this.now.y += y * this.now.k;
    }
    scale(k: number): void {
        this.now.k *= k;
    }
    clip(): void {
        const id = `clip-${this.clips.length}`;
        this.clips.push(`<clipPath id="${id}"><path d="${this.path.join("")}"/></clipPath>`);
        this.now.clip = ` clip-path="url(#${id})"`;
    }

    private at(x: number, y: number): string {
        return `${short(x * this.now.k + this.now.x)} ${short(y * this.now.k + this.now.y)}`;
    }
    private shape(how: string): void {
        this.parts.push(`<path d="${this.path.join("")}" ${how}${this.opacity}${this.now.clip}/>`);
    }
    private text(text: string, x: number, y: number, how: string): void {
        const [, weight, size, family] = /^(?:(\d+) )?(\S+) (.*)$/.exec(this.font)!;
        const anchor = this.textAlign === "center" ? ' text-anchor="middle"' : "";
        const middle = this.textBaseline === "middle" ? ' dominant-baseline="central"' : "";
        this.parts.push(
            `<text x="${short(x)}" y="${short(y)}" font-family="${family}" font-size="${size}" font-weight="${weight ?? 400}" ${how}${anchor}${middle}${this.opacity}>${escaped(text)}</text>`,
        );
    }
    private get opacity(): string {
        return this.globalAlpha < 1 ? ` opacity="${short(this.globalAlpha)}"` : "";
    }
}
