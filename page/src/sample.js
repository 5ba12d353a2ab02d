// One sample in full, and the samples of one prompt side by side.
import { promptTurns, responseTurns, turnView } from "./conversation.js";
import { el, foreign, longText, oneLine, replace } from "./dom.js";
import { kindName, number } from "./format.js";
import { rewardCell } from "./samples.js";
import { tokenView } from "./tokens.js";

export class SamplePage {
  constructor(state, parameters, go) {
    this.state = state;
    this.source = state.source;
    this.run = state.runOf(parameters);
    this.parameters = parameters;
    this.go = go;
    this.element = el("article", { class: "sample" }, el("p", { class: "empty" }, "Loading …"));
    this.load();
  }

  close() {}

  update() {
    if (this.isIndexing) this.showHistory();
  }

  async load(whole = "") {
    const { kind, step, line } = this.parameters;
    const record = await this.source.ask("sample", { run: this.run, kind, step, line, whole });
    this.record = record;
    this.history = el("div", {});
    replace(
      this.element,
      this.heading(record),
      facts(record),
      rewardTable(record),
      record.cut ? this.cutNote(record.cut) : null,
      el(
        "div",
        { class: "conversation" },
        promptTurns(record.prompt).map(turnView),
        this.images(record, "prompt"),
        responseTurns(String(record.response ?? ""), record.token_values).map(turnView),
        this.images(record, "response"),
      ),
      record.token_values
        ? tokenView(record.token_values, gapReason(record))
        : el("p", { class: "hint" }, noTokens(record)),
      expected(record),
      this.history,
    );
    this.showHistory();
  }

  // Opens the sample before or after this one; the keys p and n do this.
  move(by) {
    const line = Number(this.parameters.line) + by;
    if (line >= 1) this.go("sample", { ...this.parameters, run: this.run, line });
  }

  heading(record) {
    const { kind, step, row, dataset } = record;
    const { state, run } = this;
    const group = state.address("group", { run, kind, step, row: row ?? "", dataset: dataset ?? "" });
    return el(
      "header",
      { class: "sample-head" },
      el("h1", {}, "Sample ", foreign(String(record.id ?? "")), runNote(state, run)),
      el(
        "nav",
        { class: "choices", "aria-label": "Samples" },
        el("button", { type: "button", onclick: () => this.move(-1) }, "‹ Previous"),
        el("button", { type: "button", onclick: () => this.move(1) }, "Next ›"),
        el("a", { class: "button", href: group }, "Whole group"),
        el("a", { class: "button", href: state.address("samples", { kind }) }, "All samples"),
      ),
    );
  }

  cutNote(cut) {
    const size = Object.values(cut).reduce((sum, count) => sum + count, 0);
    return el(
      "p",
      { class: "notice" },
      `${size.toLocaleString("en-GB")} more characters are not shown. `,
      el("button", { type: "button", onclick: () => this.load("1") }, "Show all"),
    );
  }

  images(record, part) {
    const placed = pairs(record.images?.[part]);
    if (!placed.length) return null;
    return el(
      "div",
      { class: "images" },
      placed.map(([digest, count], index) => {
        const image = el("img", { alt: `image ${index + 1} of the ${part}` });
        this.source.ask("image", { run: this.run, digest }).then(
          (address) => {
            image.src = address;
          },
          (error) => image.replaceWith(foreign(error.message)),
        );
        return el(
          "figure",
          {},
          image,
          el("figcaption", {}, `image ${index + 1} of the ${part}, ${count} tokens`),
        );
      }),
    );
  }

  async showHistory() {
    if (!this.record.row) return;
    const { samples, index } = await this.source.ask("history", {
      run: this.run,
      row: this.record.row,
      dataset: this.record.dataset ?? "",
    });
    this.isIndexing = index.indexed < index.files || !samples.length;
    if (samples.length < 2) return;
    const rows = samples.slice(0, 500).map((own) =>
      el(
        "li",
        {
          "aria-current":
            own.step === this.record.step && own.line === this.record.line && own.kind === this.record.kind
              ? "true"
              : null,
        },
        el(
          "a",
          {
            href: this.state.address("sample", {
              run: this.run,
              kind: own.kind,
              step: own.step,
              line: own.line,
            }),
          },
          `${own.kind === "eval" ? "evaluation " : ""}step ${own.step}`,
        ),
        rewardCell(own.reward),
      ),
    );
    replace(
      this.history,
      el("h2", {}, `The same prompt over the steps (${samples.length.toLocaleString("en-GB")} samples)`),
      el("ol", { class: "history" }, rows),
    );
  }
}

export class GroupPage {
  constructor(state, parameters) {
    this.state = state;
    this.source = state.source;
    this.run = state.runOf(parameters);
    this.parameters = parameters;
    this.element = el("article", { class: "group-page" }, el("p", { class: "empty" }, "Loading …"));
    this.isEmpty = false;
    this.load();
  }

  close() {}

  // The index may not have the group yet.
  update() {
    if (this.isEmpty) this.load();
  }

  async load() {
    const { kind, step, row, dataset = "" } = this.parameters;
    const members = await this.source.ask("group", { run: this.run, kind, step, row, dataset });
    this.isEmpty = !members.length;
    if (this.isEmpty)
      return replace(this.element, el("p", { class: "empty" }, "This group has no samples here."));
    const rewards = members.map((record) => record.reward).filter((reward) => typeof reward === "number");
    const mean = rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
    return replace(
      this.element,
      el(
        "header",
        { class: "sample-head" },
        el(
          "h1",
          {},
          "Prompt ",
          foreign([dataset, row].filter(Boolean).join(" · ")),
          runNote(this.state, this.run),
          `, step ${step}`,
        ),
        el("p", { class: "hint" }, `${members.length} samples, mean reward ${number(mean)}`),
      ),
      el("div", { class: "conversation" }, promptTurns(members[0].prompt).map(turnView)),
      el(
        "div",
        { class: "side-by-side" },
        members.map((record) =>
          el(
            "section",
            { class: "member", "aria-label": `Sample ${record.id}` },
            el(
              "h2",
              {},
              el(
                "a",
                { href: this.state.address("sample", { run: this.run, kind, step, line: record.line }) },
                oneLine(String(record.id), 40),
              ),
              rewardCell(typeof record.reward === "number" ? record.reward : null),
            ),
            facts(record),
            longText(String(record.response ?? "")),
            record.failure ? el("p", { class: "problem" }, foreign(String(record.failure))) : null,
          ),
        ),
      ),
    );
  }
}

// Says of which run a sample is, where the page has several.
function runNote(state, run) {
  return state.runs.length > 1 ? foreign(` of ${state.runs[run].name}`) : null;
}

// The lists within a list, of a record that may hold anything.
function pairs(value) {
  return Array.isArray(value) ? value.filter(Array.isArray) : [];
}

function facts(record) {
  const versions = pairs(record.versions);
  const oldest = versions.length ? Math.min(...versions.map(([version]) => version)) : null;
  const entries = [
    ["Step", `${record.step} (${kindName(record.kind)})`],
    ["Status", record.status],
    [
      "Tokens",
      record.tokens === undefined
        ? null
        : `${record.tokens}${record.trained_tokens === undefined ? "" : `, ${record.trained_tokens} trained on`}`,
    ],
    ["Row", [record.dataset, record.row].filter((part) => part !== null && part !== undefined).join(" · ")],
    [
      "Weights",
      versions.length
        ? versions
            .map(([version, start, end]) =>
              versions.length > 1 ? `version ${version} (tokens ${start}–${end})` : `version ${version}`,
            )
            .join(", ")
        : null,
    ],
    [
      "Staleness",
      record.kind === "step" && oldest !== null ? `${Math.max(0, record.step - 1 - oldest)} versions` : null,
    ],
    [
      "Rewards of turns",
      pairs(record.turn_rewards)
        .map(([, reward]) => number(reward))
        .join(", "),
    ],
    ["Filters", Array.isArray(record.verdicts) && record.verdicts.length ? record.verdicts.join(", ") : null],
  ];
  return el(
    "dl",
    { class: "facts" },
    entries
      .filter(([, value]) => value !== null && value !== undefined && value !== "")
      .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, foreign(String(value))))),
  );
}

function rewardTable(record) {
  const rewards = record.rewards && typeof record.rewards === "object" ? Object.entries(record.rewards) : [];
  const details = record.details && typeof record.details === "object" ? record.details : {};
  const rows = rewards.map(([name, value]) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, foreign(name)),
      el("td", { class: "number" }, typeof value === "number" ? rewardCell(value) : foreign(String(value))),
      el(
        "td",
        {},
        details[name]
          ? Object.entries(details[name]).map(([key, own]) =>
              el(
                "div",
                {},
                el("b", {}, foreign(key), ": "),
                foreign(typeof own === "number" ? number(own) : String(own)),
              ),
            )
          : "",
      ),
    ),
  );
  const total = el(
    "tr",
    { class: "total" },
    el("th", { scope: "row" }, "reward"),
    el("td", { class: "number" }, rewardCell(typeof record.reward === "number" ? record.reward : null)),
    el("td", {}),
  );
  return el(
    "section",
    { class: "rewards", "aria-label": "Rewards" },
    record.failure ? el("p", { class: "problem" }, foreign(String(record.failure))) : null,
    el("table", {}, el("tbody", {}, rows, total)),
  );
}

function expected(record) {
  const parts = [
    ["Expected answer", record.label],
    ["Notes of the rollout", record.info],
  ].filter(([, value]) => value !== null && value !== undefined && JSON.stringify(value) !== "{}");
  return parts.map(([name, value]) =>
    el(
      "details",
      { open: name === "Expected answer" },
      el("summary", {}, name),
      el("pre", {}, foreign(typeof value === "string" ? value : JSON.stringify(value, null, 1))),
    ),
  );
}

// Why a sample is shown without its tokens.
function noTokens(record) {
  return record.tokens === 0 && record.response
    ? "The server that answered returned text, without token ids or log-probs."
    : "No tokens were saved for this sample: runs keep 16,384 of each file, or all with debug.save_rollouts.";
}

function gapReason(record) {
  return record.token_values.trainer_log_probs
    ? ""
    : "no gap: the trainer computes its own log-probs beforehand only where a step has several optimizer steps";
}
