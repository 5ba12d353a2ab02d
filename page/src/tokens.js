// The tokens of a response, coloured by one of their values.
import { el, foreign, replace } from "./dom.js";
import { number } from "./format.js";

const SHOWN = 4000;
const MODES = {
  log_probs: ["log-prob", (values, index) => values.log_probs?.[index]],
  gap: [
    "engine–trainer gap",
    (values, index) =>
      (values.trainer_log_probs?.[index] ?? null) === null || values.log_probs[index] === null
        ? null
        : values.trainer_log_probs[index] - values.log_probs[index],
  ],
  advantages: ["advantage", (values, index) => values.advantages?.[index]],
  mask: ["loss mask", (values, index) => values.loss_mask?.[index]],
};

export function availableModes(values) {
  const has = {
    log_probs: values.log_probs,
    gap: values.trainer_log_probs,
    advantages: values.advantages,
    mask: values.loss_mask,
  };
  return Object.keys(MODES).filter((mode) => has[mode]);
}

// The colour of a value: {kind: "low" | "high", share: 0..1}. Log-probs: from 0 (none) to -6 (full).
export function shade(mode, value, most) {
  if (value === null || value === undefined) return null;
  if (mode === "log_probs") return { kind: "low", share: Math.min(1, -value / 6) };
  if (mode === "mask") return { kind: "high", share: value > 0 ? 0.6 : 0 };
  return { kind: value < 0 ? "low" : "high", share: most ? Math.min(1, Math.abs(value) / most) : 0 };
}

export function tokenView(values, reasons = "") {
  const modes = availableModes(values);
  const box = el("div", { class: "tokens" });
  const legend = el("p", { class: "hint" });
  let shown = SHOWN;
  let mode = modes[0];
  const draw = () => {
    const [name, valueOf] = MODES[mode];
    const of = values.ids.map((_, index) => valueOf(values, index));
    const most = of.reduce((largest, value) => Math.max(largest, Math.abs(value ?? 0)), 0);
    replace(
      box,
      values.ids.slice(0, shown).map((id, index) => token(values, index, id, mode, of[index], most)),
    );
    if (shown < values.ids.length)
      box.append(
        el(
          "button",
          {
            type: "button",
            onclick: () => {
              shown += 5 * SHOWN;
              draw();
            },
          },
          `Show more of ${values.num_tokens.toLocaleString("en-GB")} tokens`,
        ),
      );
    legend.textContent = `Coloured by ${name}: ${legendText(mode, most)}${reasons ? ` · ${reasons}` : ""}`;
  };
  const buttons = modes.map((own) =>
    el(
      "button",
      {
        type: "button",
        "aria-pressed": String(own === mode),
        "data-mode": own,
        onclick: (event) => {
          mode = own;
          for (const button of buttons)
            button.setAttribute("aria-pressed", String(button === event.currentTarget));
          draw();
        },
      },
      MODES[own][0],
    ),
  );
  draw();
  return el(
    "section",
    { class: "token-view", "aria-label": "Tokens" },
    el("div", { class: "choices", role: "group", "aria-label": "Colour tokens by" }, buttons),
    legend,
    box,
  );
}

function token(values, index, id, mode, value, most) {
  const piece = values.pieces[index];
  const colour = shade(mode, value, most);
  const given = values.loss_mask && values.loss_mask[index] === 0 && !values.log_probs?.[index];
  const facts = Object.entries(MODES)
    .map(([, [name, valueOf]]) => [name, valueOf(values, index)])
    .filter(([, own]) => own !== null && own !== undefined)
    .map(([name, own]) => `${name} ${number(own)}`);
  const attributes = {
    class: `token ${colour ? colour.kind : ""} ${given ? "given" : ""}`,
    title: `token ${id}, ${facts.join(", ")}`,
  };
  if (colour) attributes.style = { "--share": String(Math.round(colour.share * 100) / 100) };
  return el(
    "span",
    attributes,
    piece === null ? el("small", {}, `[${id}]`) : foreign(piece === "\n" ? "↵\n" : piece),
  );
}

function legendText(mode, most) {
  if (mode === "log_probs") return "the darker, the less likely";
  if (mode === "mask") return "coloured tokens are trained on";
  return `blue above 0, red below; the strongest is ${number(most)}`;
}
