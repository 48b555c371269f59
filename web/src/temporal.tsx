import { api, Refused } from "./api";
import { RefusedNote, useRequests } from "./request";
import type { Store } from "./store";

/** Returns u if it is a web address, so that a link can never be a script. */
export function web(u: string | undefined): string {
  return u && /^https?:\/\//i.test(u) ? u.replace(/\/+$/, "") : "";
}

/** Opens Temporal's UI at a path, with a link that works once. */
async function open(path: string): Promise<void> {
  // The window opens before the link is there: browsers block windows that open later.
  const w = window.open("about:blank", "_blank");
  if (!w) throw new Refused(0, "The browser has blocked the window.");
  w.opener = null;
  try {
    w.location.href = `${web(await api.temporalUI())}?to=${encodeURIComponent(path)}`;
  } catch (e) {
    w.close();
    throw e;
  }
}

/** A link to Temporal's UI, or to one workflow there; nothing if there is no UI. */
export function TemporalLink({ store, id, run, children }: { store: Store; id?: string; run?: string; children: string }) {
  const requests = useRequests();
  const t = store.status?.temporal;
  const path = id && run ? `/namespaces/${encodeURIComponent(t?.namespace || "default")}/workflows/${encodeURIComponent(id)}/${encodeURIComponent(run)}` : "";
  if (t?.uiLinks)
    return (
      <>
        <button type="button" class="link" data-temporal disabled={store.idle || !t.ready || requests.busy !== ""} onClick={() => requests.run("temporal", () => open(path || "/"))}>
          {children} ↗
        </button>
        <RefusedNote requests={requests} />
      </>
    );
  const ui = web(t?.ui);
  return ui ? (
    <a href={ui + path} target="_blank" rel="noreferrer" data-temporal>
      {children} ↗
    </a>
  ) : null;
}
