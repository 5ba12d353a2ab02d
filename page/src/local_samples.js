// Filters, sorts and searches the samples of a page without a server, as the server does with SQL.

const ORDERS = {
  newest: [],
  oldest: [(a, b) => a.step - b.step, (a, b) => a.line - b.line],
  best: [(a, b) => b.reward - a.reward, (a, b) => b.step - a.step, (a, b) => b.line - a.line],
  worst: [(a, b) => a.reward - b.reward],
  longest: [(a, b) => b.tokens - a.tokens],
  shortest: [(a, b) => a.tokens - b.tokens],
};
const THEN = [(a, b) => b.step - a.step, (a, b) => a.line - b.line];

export function matches(row, filters) {
  const bounds = [
    ["from_step", (limit) => row.step >= limit],
    ["to_step", (limit) => row.step <= limit],
    ["min_reward", (limit) => row.reward !== null && row.reward >= limit],
    ["max_reward", (limit) => row.reward !== null && row.reward <= limit],
    ["min_tokens", (limit) => row.tokens >= limit],
    ["max_tokens", (limit) => row.tokens <= limit],
  ];
  if (row.kind !== (filters.kind || "step")) return false;
  if (bounds.some(([name, fits]) => filters[name] && !fits(Number(filters[name])))) return false;
  if (["status", "dataset", "row"].some((name) => filters[name] && row[name] !== filters[name])) return false;
  if (filters.failed && !row.failed) return false;
  return !(["best", "worst"].includes(filters.order) && row.reward === null);
}

export function querySamples(rows, filters, page = 100) {
  const order = [...(ORDERS[filters.order] || []), ...THEN];
  const found = rows.filter((row) => matches(row, filters));
  found.sort((a, b) => order.reduce((sign, compare) => sign || compare(a, b), 0));
  const offset = Number(filters.offset || 0);
  return { rows: found.slice(offset, offset + page), count: found.length, is_exact: true, page };
}

export function queryGroups(rows, filters, page = 100) {
  const groups = new Map();
  for (const row of rows) {
    if (!matches(row, { ...filters, order: "", status: "", dataset: "", failed: "" })) continue;
    const key = JSON.stringify([row.run, row.step, row.row, row.dataset]);
    groups.set(key, [...(groups.get(key) || []), row]);
  }
  const found = [...groups.values()].map(summary).filter((group) => group.spread !== null);
  found.sort((a, b) => b.spread - a.spread || b.step - a.step || a.line - b.line);
  const offset = Number(filters.offset || 0);
  return { rows: found.slice(offset, offset + page), count: found.length, is_exact: true, page };
}

function summary(members) {
  const rewards = members.map((row) => row.reward).filter((reward) => reward !== null);
  const largest = Math.max(...rewards.map(Math.abs)) || 1; // sums and squares of rewards such as 1e308 would overflow
  const scaled = rewards.map((reward) => reward / largest);
  const mean = scaled.reduce((sum, reward) => sum + reward, 0) / scaled.length;
  const squares = scaled.reduce((sum, reward) => sum + (reward - mean) ** 2, 0);
  const { run, kind, step, line, row, dataset, prompt } = members[0];
  const spread = rewards.length > 1 ? Math.sqrt(squares / rewards.length) * largest : null;
  return {
    run,
    kind,
    step,
    line,
    row,
    dataset,
    prompt,
    samples: members.length,
    mean: mean * largest,
    spread,
  };
}

export function excerptOf(record, text) {
  for (const name of ["prompt", "response", "label", "failure", "id", "row"]) {
    const value = record[name] ?? "";
    const shown = typeof value === "string" ? value : JSON.stringify(value);
    const start = shown.toLowerCase().indexOf(text.toLowerCase());
    if (start >= 0) return shown.slice(Math.max(0, start - 60), start + text.length + 60);
  }
  return null;
}
