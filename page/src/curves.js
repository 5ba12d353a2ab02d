// Pure functions over curves: smoothing, joining the steps of several runs, and the groups of metrics.

// An exponential moving average without the bias of its start (as in Adam).
export function smooth(values, weight) {
  if (!weight) return values;
  let mean = 0;
  let sum = 0;
  return values.map((value) => {
    mean = weight * mean + (1 - weight) * value;
    sum = weight * sum + (1 - weight);
    return mean / sum;
  });
}

// Curves as [steps, values] -> the table [steps, values, values …] that the chart draws.
export function joinSteps(curves) {
  const steps = [...new Set(curves.flatMap(([own]) => own))].sort((a, b) => a - b);
  const place = new Map(steps.map((step, index) => [step, index]));
  const columns = curves.map(([own, values]) => {
    const column = new Array(steps.length).fill(null);
    own.forEach((step, index) => {
      column[place.get(step)] = values[index];
    });
    return column;
  });
  return [steps, ...columns];
}

export function positive(values) {
  return values.map((value) => (value > 0 ? value : null));
}

// Metrics that are the same number in every selected run, as a map from the one that is drawn to the others' names.
// runs: [{names, same}]; same: the groups of a run's metrics that have had the same values.
export function drawnOnce(runs) {
  const groups = new Map();
  for (const name of new Set(runs.flatMap(({ names }) => names))) {
    const key = JSON.stringify(runs.map((run) => sameness(run, name)));
    groups.set(key, [...(groups.get(key) ?? []), name]);
  }
  return new Map(
    [...groups.values()].map((group) => {
      const [drawn, ...aliases] = group.sort(byImportance);
      return [drawn, aliases];
    }),
  );
}

// What a metric has in common with those that equal it in this run: their group, or its own name.
function sameness({ names, same = [] }, name) {
  const group = same.findIndex((members) => members.includes(name));
  if (group >= 0) return group;
  return names.includes(name) ? name : null;
}

const GROUPS = [
  ["Rewards", /^rollout\/(reward\/|rewards\/|pass@)|^eval\/.*\/(reward|pass@\d+)$/],
  ["Responses", /^(rollout|eval\/.*)\/(response_len\/|truncated_ratio|repetition_frac|log_probs|info\/)/],
  ["Learning", /^train\//],
  [
    "Filters and failures",
    /\/(dropped|dropped_samples|masked_samples)\/|\/(failed|late|bad_answers|zero_std\/count)$/,
  ],
  ["Staleness and caches", /\/(staleness\/|buffer\/|off_policy_frac|prefix_cache_hit_rate)/],
  ["Speculative decoding", /^rollout\/spec_/],
  ["Speed", /^perf\/(tokens_per_second|mfu)/],
  ["Time of a step", /^perf\/.*(_time|wait_ratio)$/],
  ["Memory and transfers", /^perf\/(peak_memory|weight_sync_bytes)/],
];
const FIRST = ["rollout/reward/mean", "train/loss", "perf/step_time", "rollout/response_len/mean"];

export function groupMetrics(names) {
  const groups = new Map([...GROUPS.map(([title]) => [title, []]), ["Other", []]]);
  for (const name of names) {
    const group = GROUPS.find(([, pattern]) => pattern.test(name));
    groups.get(group ? group[0] : "Other").push(name);
  }
  for (const members of groups.values()) members.sort(byImportance);
  return [...groups].filter(([, members]) => members.length);
}

function byImportance(a, b) {
  return rank(a) - rank(b) || a.localeCompare(b);
}

function rank(name) {
  const first = FIRST.indexOf(name);
  if (first >= 0) return first - 10;
  return /^eval\/.*\/reward$/.test(name) ? -5 : 0;
}
