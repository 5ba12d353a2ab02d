// What the page shows. This is the only state that outlives a screen, or that two modules share.

const REFRESH_MILLISECONDS = 2000;
const MAX_SELECTED = 8; // as many as there are colours

export class PageState {
  runs = [];
  selected = [0]; // the numbers of the selected runs, ascending
  screen = null; // the open screen
  charts = { weight: 0, log: false, zoom: null, text: "" }; // the settings of the overview's charts
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

  selectFirstRuns() {
    this.selected = this.runs.map((_, number) => number).slice(0, MAX_SELECTED);
  }

  // Selects a run, or removes it from the selection unless it is the only one.
  toggle(number) {
    const others = this.selected.filter((own) => own !== number);
    if (!this.selected.includes(number)) this.selected = [...others, number].sort((a, b) => a - b);
    else if (others.length) this.selected = others;
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
}
