// Where the data comes from: the server, or, in a page without one, the data inside the page.
import { given } from "./address.js";
import { excerptOf, queryGroups, querySamples } from "./local_samples.js";

// Returns the source of the page's data: a FileSource if the page contains data, else a ServerSource.
export async function openSource() {
  const element = document.getElementById("data");
  if (!element) return new ServerSource();
  const data = await unpack(element.textContent);
  element.remove();
  return new FileSource(data);
}

// Decodes what page.py's _packed encodes.
async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

export class ServerSource {
  isFile = false;

  // Returns the answer to a question; throws an Error whose message can be shown.
  async ask(name, parameters = {}) {
    const base = location.pathname.replace(/[^/]*$/, "");
    let response;
    try {
      response = await fetch(`${base}api/${name}?${new URLSearchParams(given(parameters))}`);
    } catch {
      throw new Error("rlrun view has ended: start it again");
    }
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.problem || response.statusText);
    return answer;
  }
}

export class FileSource {
  isFile = true;

  #data;

  constructor(data) {
    this.#data = data;
  }

  // Returns the answer that a server would give; throws an Error whose message can be shown.
  async ask(name, parameters = {}) {
    const run = this.#data.runs[Number(parameters.run || 0)];
    const answers = {
      runs: () => this.#data.runs.map((own) => own.status),
      sweeps: () => this.#data.sweeps,
      curves: () => localCurves(run, parameters),
      specs: () => localSpecs(this.#data, parameters),
      timeline: () => localTimeline(run, parameters),
      samples: () => localPage(this.#data, parameters),
      sample: () => localSample(run, parameters),
      group: () => localGroup(run, parameters),
      image: () => run.images[parameters.digest] || "",
      history: () => localHistory(run, parameters),
      search: () => localSearch(run, parameters),
    };
    return answers[name]();
  }
}

function localTimeline(run, { step }) {
  return run.timelines[step] || { step, spans: [], steps: [], from: "none" };
}

function localGroup(run, parameters) {
  const { kind, step } = parameters;
  return run.samples
    .filter((row) => row.kind === kind && row.step === Number(step) && isOfPrompt(row, parameters))
    .map((row) => run.records[keyOf(row)]);
}

function localHistory(run, parameters) {
  const samples = run.samples
    .filter((row) => isOfPrompt(row, parameters))
    .sort((a, b) => a.step - b.step || a.line - b.line);
  return { samples, index: { files: 0, indexed: 0 } };
}

function isOfPrompt(sample, { row, dataset }) {
  return sample.row === String(row) && sample.dataset === String(dataset ?? "");
}

function keyOf({ kind, step, line }) {
  return `${kind}-${step}-${line}`;
}

function localSample(run, parameters) {
  const record = run.records[keyOf(parameters)];
  if (!record) throw new Error("this file does not contain the sample");
  return record;
}

function localCurves(run, { names, from, to }) {
  const [first, last] = [from === "" ? -Infinity : Number(from), to === "" ? Infinity : Number(to)];
  return Object.fromEntries(
    JSON.parse(names).map((name) => {
      const [steps, values] = run.curves[name] || [[], []];
      const kept = steps
        .map((step, index) => index)
        .filter((index) => steps[index] >= first && steps[index] <= last);
      return [name, [kept.map((index) => steps[index]), kept.map((index) => values[index])]];
    }),
  );
}

function localSpecs({ runs: all, differences }, { runs }) {
  const numbers = runs.split(",").map(Number);
  return {
    spec: all[numbers[0]].spec,
    differences: numbers.slice(1).map((other) => differences[`${numbers[0]}-${other}`] || []),
  };
}

function localPage(data, parameters) {
  const numbers = parameters.runs.split(",").map(Number);
  const runs = numbers.map((number) => data.runs[number]);
  const rows = numbers.flatMap((run) => data.runs[run].samples.map((row) => ({ run, ...row })));
  const query = parameters.order === "disagreed" ? queryGroups : querySamples;
  const names = { status: new Set(), dataset: new Set() };
  for (const row of rows.filter((own) => own.kind === (parameters.kind || "step"))) {
    names.status.add(row.status);
    if (row.dataset) names.dataset.add(row.dataset);
  }
  const shown = { status: [...names.status].sort(), dataset: [...names.dataset].sort() };
  return {
    ...query(rows, parameters),
    names: shown,
    problems: runs.flatMap((run) => run.problems),
    index: { files: 1, indexed: 1, error: "" },
    note: noteOf(runs),
  };
}

// What the file leaves out of these runs.
function noteOf(runs) {
  const notes = runs.map(({ note, status }) => note && (runs.length > 1 ? `${status.name}: ${note}` : note));
  return notes.filter(Boolean).join(" · ");
}

function localSearch(run, { kind, text }) {
  const rows = run.samples
    .filter((row) => row.kind === kind)
    .map((row) => ({ ...row, excerpt: excerptOf(run.records[keyOf(row)], text) }))
    .filter((row) => row.excerpt !== null)
    .sort((a, b) => b.step - a.step || a.line - b.line);
  return { rows: rows.slice(0, 100), next: null, searched: 1, files: 1 };
}
