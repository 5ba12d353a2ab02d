// A prompt and a response as a conversation, turn by turn.
import { el, foreign, longText } from "./dom.js";

// A prompt is a text, or messages [{role, content}]; content is a text or a list of parts.
export function promptTurns(prompt) {
  if (!Array.isArray(prompt)) return [{ role: "user", content: prompt }];
  return prompt.map((message) =>
    message && typeof message === "object" ? message : { role: "?", content: message },
  );
}

// The turns of a response: stretches that the policy generated, and stretches that it was given (a tool's results).
export function responseTurns(text, values) {
  if (
    !values ||
    !values.loss_mask ||
    values.pieces.some((piece) => piece === null) ||
    values.ids.length < values.num_tokens
  )
    return [{ role: "assistant", content: text }];
  const turns = [];
  values.pieces.forEach((piece, index) => {
    const isGiven = values.loss_mask[index] === 0 && !values.log_probs[index];
    const role = isGiven ? "environment" : "assistant";
    if (turns.at(-1)?.role === role) turns.at(-1).content += piece;
    else turns.push({ role, content: piece });
  });
  return turns.length > 1 ? turns : [{ role: "assistant", content: text }];
}

export function turnView({ role, content, ...others }) {
  const more = Object.entries(others).filter(
    ([name, value]) => value !== null && value !== undefined && name !== "images",
  );
  return el(
    "section",
    { class: `turn ${/^[a-z]+$/.test(role) ? role : ""}`, "aria-label": String(role) },
    el("h3", {}, foreign(String(role))),
    contentView(content),
    more.map(([name, value]) =>
      el(
        "details",
        { open: name === "tool_calls" },
        el("summary", {}, foreign(name)),
        el("pre", {}, foreign(JSON.stringify(value, null, 1))),
      ),
    ),
  );
}

function contentView(content) {
  if (Array.isArray(content)) return content.map((part) => partView(part));
  return longText(
    content === null || content === undefined
      ? ""
      : typeof content === "string"
        ? content
        : JSON.stringify(content, null, 1),
  );
}

function partView(part) {
  if (part?.type === "text") return contentView(part.text);
  if (part?.type === "image") return el("p", { class: "hint" }, "[image]");
  return contentView(part);
}
