// Addresses of screens: `#samples?kind=eval&order=best`.

// Returns the address of a screen, for a link.
export function addressOf(name, parameters) {
  const query = new URLSearchParams(parameters).toString().replaceAll("%2C", ",");
  return query ? `#${name}?${query}` : `#${name}`;
}

// Returns the screen's name and the parameters of an address.
export function readAddress(hash) {
  const [name, query = ""] = hash.slice(1).split("?");
  return { name, parameters: Object.fromEntries(new URLSearchParams(query)) };
}

// Returns the parameters that have a value.
export function given(parameters) {
  return Object.fromEntries(
    Object.entries(parameters).filter(([, value]) => value !== "" && value !== undefined),
  );
}
