// The places of the page: what the part of its address behind # names.

import { useEffect, useState } from "preact/hooks";

/**
 * A place is a view, the name of what is shown there, and what is done with it:
 * #/machines/NAME, #/machines/NAME/edit, #/operations/RUN, #/images, #/new/machine/MAC.
 */
export interface Place {
  view: string;
  name: string;
  act: string;
}

/** The views that the navigation leads to, and their words. */
export const tabs = [
  ["machines", "Machines"],
  ["operations", "Operations"],
  ["images", "Images"],
  ["templates", "Templates"],
  ["tokens", "Tokens"],
  ["statistics", "Statistics"],
] as const;

/** Returns the link to a place. */
export function pathTo(view: string, name = "", act = ""): string {
  return "#/" + [view, name, act].filter(Boolean).map(encodeURIComponent).join("/");
}

/** Goes to a place. */
export function go(link: string): void {
  location.hash = link;
}

/** Reads the part of an address behind #. What is no place is the table of machines. */
export function placeOf(hash: string): Place {
  try {
    const [view = "", name = "", act = ""] = hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
    return { view: view || "machines", name, act };
  } catch {
    return { view: "machines", name: "", act: "" };
  }
}

/** Returns the view of the navigation to which a place belongs. */
export function tabOf(p: Place): string {
  const view = p.view === "new" ? `${p.name}s` : p.view;
  return tabs.some(([tab]) => tab === view) ? view : "machines";
}

/** Returns the place of the address, and draws again when it changes. */
export function usePlace(): Place {
  const [place, set] = useState(() => placeOf(location.hash));
  useEffect(() => {
    const f = () => set(placeOf(location.hash));
    addEventListener("hashchange", f);
    return () => removeEventListener("hashchange", f);
  }, []);
  return place;
}
