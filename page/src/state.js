// What the page shows. This is the only state that outlives a screen, or that two modules share. An address holds what
// a reader chose: the screen with its parameters, the selected runs, and the settings of the overview's charts.
import { addressOf, given } from "./address.js";

const REFRESH_MILLISECONDS = 2000;
export const MAX_SELECTED = 8; // as many as there are colours

export class PageState {
  runs = [];
  selected = [0]; // the numbers of the selected runs, ascending
  screen = null; // the open screen
  charts = chartsOf({}); // the settings of the overview's charts
  isLost = false; // the last refresh failed

  #opened = ""; // the address and the selection for which the screen was opened

  // source: a ServerSource or a FileSource.
  constructor(source) {
    this.source = source;
  }

  // Reads the runs. The metrics of runs that are not selected are not read.
  async readRuns() {
    this.runs = await this.source.ask("runs", { selected: this.selected.join(",") });
  }

  // Takes over what an address says; what it leaves out becomes the default.
  follow({ name, parameters }) {
    this.selected = this.#selection(parameters.runs);
    if (name === "overview") this.charts = chartsOf(parameters);
  }

  // Returns the address of a screen; `run` in its parameters is the number of a run.
  address(name, parameters = {}, selected = this.selected) {
    const charts = name === "overview" ? chartParameters(this.charts) : {};
    const named = { ...parameters, ...charts };
    delete named.runs;
    delete named.run;
    if (this.runs.length > 1) {
      if (parameters.run !== undefined && selected.length > 1) named.run = this.#key(parameters.run);
      named.runs = selected.map((number) => this.#key(number)).join(",");
    }
    return addressOf(name, given(named));
  }

  // Returns the number of the run that a screen shows if it shows only one.
  runOf({ run }) {
    return (run === undefined ? null : this.#number(run)) ?? this.selected[0];
  }

  // Returns the selection with a run added, or removed unless it is the only one.
  toggled(number) {
    const others = this.selected.filter((own) => own !== number);
    if (!this.selected.includes(number)) return [...others, number].sort((a, b) => a - b);
    return others.length ? others : this.selected;
  }

  // Returns whether the screen must be opened: its address or the selection has changed.
  mustOpen(address) {
    const wanted = `${address} ${this.selected.join(",")}`;
    const isNew = wanted !== this.#opened;
    this.#opened = wanted;
    return isNew;
  }

  // Makes the next call of mustOpen return true.
  forgetOpened() {
    this.#opened = "";
  }

  // Returns how long to wait for the next refresh; null: a file does not change.
  refreshDelay(isHidden) {
    if (this.source.isFile) return null;
    return isHidden ? 5 * REFRESH_MILLISECONDS : REFRESH_MILLISECONDS;
  }

  #selection(keys) {
    const all = this.runs.map((_, number) => number).slice(0, MAX_SELECTED);
    if (keys === "all") return all;
    const numbers = (keys ?? "").split(",").map((key) => this.#number(key));
    const known = [...new Set(numbers)].filter((number) => number !== null).sort((a, b) => a - b);
    if (known.length) return known;
    return this.source.isFile ? all : [0];
  }

  // An address names a run by its name, which stays the same when the page is made again, or else by its number.
  #key(number) {
    const { name } = this.runs[number];
    const isUnique = this.runs.filter((run) => run.name === name).length === 1;
    return isUnique && !name.includes(",") ? name : String(number);
  }

  #number(key) {
    const number = this.runs.findIndex((_, own) => this.#key(own) === key);
    return number < 0 ? null : number;
  }
}

function chartsOf({ filter = "", smoothing, log, from, to }) {
  const zoom = [from, to].map(Number);
  const weight = Number(smoothing);
  return {
    text: filter,
    weight: weight >= 0 && weight < 1 ? weight : 0,
    log: log === "1",
    zoom: from && to && zoom.every(Number.isFinite) ? zoom : null,
  };
}

function chartParameters({ text, weight, log, zoom }) {
  const [from, to] = (zoom ?? []).map((step) => Number(step.toFixed(2)));
  return { filter: text, smoothing: weight || "", log: log ? "1" : "", from: from ?? "", to: to ?? "" };
}
