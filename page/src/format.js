// Numbers, times and sizes as people read them.

export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e7)) return value.toExponential(2);
  if (size >= 1000) return value.toLocaleString("en-GB", { maximumFractionDigits: 0 });
  return String(Number(value.toPrecision(4)));
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 10) return `${seconds.toFixed(seconds < 1 ? 2 : 1)} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return `${minutes} min`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = value;
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${size >= 100 ? Math.round(size) : Number(size.toPrecision(3))} ${units[unit]}`;
}

export function ago(time, now = Date.now()) {
  return `${duration(Math.max(0, (now - Date.parse(time)) / 1000))} ago`;
}

export function metricValue(name, value) {
  if (value === null || value === undefined) return "–";
  if (/peak_memory|_bytes$/.test(name)) return bytes(value);
  if (/_time$/.test(name)) return duration(value);
  return number(value);
}

// A value of a spec.
export function settingText(value) {
  if (value === null || value === undefined) return "not set";
  if (typeof value === "string") return value;
  const isSmall = typeof value === "number" && value !== 0 && Math.abs(value) < 0.001;
  return isSmall ? value.toExponential() : JSON.stringify(value);
}

export function kindName(kind) {
  return { step: "Trained on", dropped: "Not trained on", eval: "Evaluation" }[kind] || kind;
}
