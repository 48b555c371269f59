import { pathTo, tabs } from "./route";
import { Search } from "./search";
import type { Store } from "./store";
import { TemporalLink } from "./temporal";
import { span } from "./text";

function Pill({ good, name, children, id }: { good: boolean; name: string; children: string; id: string }) {
  return (
    <span class={`pill ${good ? "good" : "bad"}`} data-status={id} data-good={good}>
      <i aria-hidden="true" /> <b>{name}</b> {children}
    </span>
  );
}

export function Header({ store, tab }: { store: Store; tab: string }) {
  const s = store.status;
  const t = s?.temporal;
  const off = s?.netboot?.off || (s?.netboot !== undefined && (s.netboot.interfaces?.length ?? 0) + (s.netboot.relays?.length ?? 0) === 0);
  return (
    <>
      <header>
        <a class="brand" href="#/">
          <img src="/favicon.svg" alt="" width="22" height="22" />
          <h1>Ingot</h1>
        </a>
        {store.link !== "denied" && tabs.length > 1 && (
          <nav aria-label="Views">
            {tabs
              .filter(([view]) => view !== "tokens" || store.caller?.role === "admin")
              .map(([view, words]) => (
              <a key={view} href={view === "machines" ? "#/" : pathTo(view)} aria-current={view === tab ? "page" : undefined}>
                {words}
              </a>
            ))}
          </nav>
        )}
        {store.loaded && store.link !== "denied" && <Search store={store} />}
        {s && store.link !== "denied" && (
          <div class="pills">
            <Pill id="temporal" good={t?.ready ?? false} name="Temporal">
              {t?.ready ? "up" : "down"}
            </Pill>
            <Pill id="dhcp" good={!off} name="DHCP">
              {off ? "off" : [...(s.netboot?.interfaces ?? []), ...(s.netboot?.relays ?? []).map((r) => `relay ${r}`)].map(face).filter(Boolean).join(", ") || "on"}
            </Pill>
            <TemporalLink store={store}>Temporal UI</TemporalLink>
            {store.caller && (
              <span data-caller={store.caller.role} title={`this session may ${store.caller.role}`}>
                {store.caller.name}
                {store.caller.role === "read" && " (read only)"}
              </span>
            )}
            <span class="quiet" title={s.uptimeSeconds !== undefined ? `up for ${span(s.uptimeSeconds)}` : ""}>
              {s.version}
            </span>
          </div>
        )}
      </header>
      {s && store.link !== "denied" && (
        <section class="notices" aria-label="Notices">
          {t && !t.ready && (
            <p class="notice" data-notice="temporal">
              <b>Temporal is down.</b> Runs rest and go on when it is back; DHCP, boot files and metadata are served. {t.error}
            </p>
          )}
          {off && (
            <p class="notice" data-notice="dhcp">
              <b>DHCP off.</b> {said(s.netboot?.message)}
            </p>
          )}
          {(s.secrets === "missing" || s.secrets === "wrong") && (
            <p class="notice" data-notice="secrets">
              <b>The secret key is {s.secrets}.</b> No machine can be armed until it is back. Put the key file back, or run: ingot secret reset
            </p>
          )}
        </section>
      )}
    </>
  );
}

// The notice already says "DHCP off".
function said(message: string | undefined): string {
  const m = (message ?? "").replace(/^DHCP (is )?off[:.]?\s*/i, "");
  return m ? m[0]!.toUpperCase() + m.slice(1) : "Run: ingot init";
}

// An interface is a name, or an object with a name.
function face(i: unknown): string {
  if (typeof i === "string") return i;
  const o = (i ?? {}) as { name?: unknown; interface?: unknown };
  return typeof o.name === "string" ? o.name : typeof o.interface === "string" ? o.interface : "";
}
