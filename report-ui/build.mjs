// Builds the page's script and style into the package, with the licences of what is in them, and a note of
// what they were built from, by which a test sees that they are of these sources.

import { createHash } from "node:crypto";
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import * as esbuild from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const assets = join(here, "../src/broadloom/report/assets");
process.chdir(here);

const settings = {
    bundle: true,
    minify: true,
    format: "iife",
    target: "es2022",
    charset: "ascii",
    legalComments: "none",
    metafile: true,
    write: false,
};
const worker = await esbuild.build({ ...settings, entryPoints: { worker: "src/force_worker.ts" } });
const built = await esbuild.build({
    ...settings,
    entryPoints: { report: "src/main.ts" },
    define: { WORKER_SCRIPT: JSON.stringify(worker.outputFiles[0].text) },
});
// Inside a page nothing may look like the end of the script.
const script = built.outputFiles[0].text.replaceAll("</script", "<\\/script").replaceAll("<!--", "<\\!--");
const style = (
    await esbuild.transform(readFileSync("src/report.css", "utf8"), { loader: "css", minify: true })
).code;

/** The package that a bundled file is from, "d3-geo" or "@observablehq/plot". */
function packageOf(file) {
    const parts = file.split("node_modules/").at(-1).split("/");
    return parts.slice(0, parts[0].startsWith("@") ? 2 : 1).join("/");
}

function licence(name) {
    const folder = join("node_modules", name);
    const about = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = ["LICENSE", "LICENSE.md", "LICENSE.txt", "license"]
        .map((one) => join(folder, one))
        .find(existsSync);
    const text = file ? readFileSync(file, "utf8").trim() : `Licence: ${about.license}`;
    return `${name} ${about.version} (${about.license})\n\n${text}\n`;
}

const inside = Object.entries(built.metafile.outputs)[0][1].inputs;
const names = [
    ...new Set(
        Object.keys(inside)
            .filter((file) => file.includes("node_modules/") && inside[file].bytesInOutput > 0)
            .map(packageOf),
    ),
].sort();
const rule = `\n${"-".repeat(80)}\n\n`;
const intro =
    "The page of a report contains parts of these packages. The outline of the world in world-atlas is\nmade from Natural Earth, which is in the public domain.\n";
const licences = [intro, ...names.map(licence)].join(rule);

const sha256 = (text) => createHash("sha256").update(text).digest("hex");
const sources = [
    "build.mjs",
    "package.json",
    "package-lock.json",
    "tsconfig.json",
    ...readdirSync("src")
        .sort()
        .map((file) => `src/${file}`),
];
const note = {
    sources: Object.fromEntries(sources.map((file) => [file, sha256(readFileSync(file))])),
    built: { "report.js": sha256(script), "report.css": sha256(style), "LICENSES.txt": sha256(licences) },
};
for (const [file, text] of Object.entries({
    "report.js": script,
    "report.css": style,
    "LICENSES.txt": licences,
    "built.json": `${JSON.stringify(note, null, 1)}\n`,
}))
    writeFileSync(join(assets, file), text);
console.log(`report.js ${script.length}, report.css ${style.length} bytes, of ${names.join(", ")}`);
