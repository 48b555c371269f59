import { useState } from "preact/hooks";
import { api } from "./api";
import { ByName, Field, FormNote, problemsOf } from "./form";
import type { Form } from "./form";
import { useLoaded } from "./loaded";
import { Idle, RefusedNote, useRequests } from "./request";
import { pathTo } from "./route";
import type { Store } from "./store";
import { ago, at, clock } from "./text";
import type { Token } from "./types";
import { Side } from "./side";

const roles: [string, string][] = [
  ["read", "read: see machines, runs and logs"],
  ["operate", "operate: also install and change"],
  ["admin", "admin: also tokens, backups, peers"],
  ["metrics", "metrics: /metrics alone"],
  ["codec", "codec: /codec alone"],
  ["backup", "backup: make backups alone"],
];

const lives: [string, string][] = [
  ["", "until it is revoked"],
  ["24h", "a day"],
  ["720h", "30 days"],
  ["8760h", "a year"],
];

/** The named tokens, for administrators. */
export function Tokens({ store, now }: { store: Store; now: number }) {
  const tokens = useLoaded("tokens", api.tokens);
  return (
    <main class="columns">
      <section class="list" aria-label="Tokens">
        <p class="acts">
          <a href={pathTo("new", "token")}>Make a token</a>
        </p>
        <RefusedNote requests={tokens} />
        {tokens.value?.length === 0 && <p class="quiet">No tokens but the administrator's.</p>}
        <Idle.Provider value={store.idle}>
          {tokens.value?.map((t) => (
            <TokenCard key={t.id} token={t} now={now} changed={tokens.again} />
          ))}
        </Idle.Provider>
      </section>
      <Side store={store} back={pathTo("tokens")} all="All tokens" label="New token">
        <NewToken changed={tokens.again} />
      </Side>
    </main>
  );
}

function TokenCard({ token: t, now, changed }: { token: Token; now: number; changed: () => void }) {
  const requests = useRequests();
  const expires = at(t.expires);
  return (
    <div class="row transfer" data-token={t.name}>
      <span class="row-top">
        <span class="name">{t.name}</span> <span>{t.role}</span>
        <span class="quiet">{[at(t.created) > 0 && `made ${ago(at(t.created), now)}`, t.by && `by ${t.by}`].filter(Boolean).join(" ")}</span>
        <span class={expires && expires < now ? "failure" : "quiet"}>{expires ? (expires < now ? "has expired" : `until ${clock(expires, now)}`) : ""}</span>
      </span>
      {t.off && (
        <div class="buttons">
          <span class="failure">Off since a restore from a backup.</span>
          <button type="button" data-choice="enable" disabled={requests.busy !== ""} onClick={() => requests.run("enable", async () => { await api.enableToken(t.name); changed(); })}>
            Let it be used again
          </button>
        </div>
      )}
      <RefusedNote requests={requests} />
      <ByName
        name={t.name}
        label={`Revoke ${t.name}`}
        sure="Revoke it"
        choice="revoke"
        onDo={async () => {
          await api.revokeToken(t.name);
          changed();
        }}
      >
        <p>Its sessions, streams and requests end within a second.</p>
      </ByName>
    </div>
  );
}

function NewToken({ changed }: { changed: () => void }) {
  const requests = useRequests();
  const [texts, setTexts] = useState<Record<string, string>>({ role: "read" });
  const [made, setMade] = useState<Token & { token: string }>();
  const problems = problemsOf(requests, ["name", "role", "for"]);
  const form: Form = { texts, problems, change: (f, text) => setTexts((t) => ({ ...t, [f]: text })) };
  return (
    <section class="panel" aria-labelledby="panel-name" data-add="token">
      <div class="panel-head">
        <h2 id="panel-name">Make a token</h2>
      </div>
      {made ? (
        <>
          <p>
            The token <b>{made.name}</b>, shown this once: the server keeps no copy.
          </p>
          <p>
            <code data-secret>{made.token}</code>
          </p>
          <div class="buttons">
            {navigator.clipboard && (
              <button type="button" onClick={() => void navigator.clipboard.writeText(made.token)}>
                Copy
              </button>
            )}
            <button type="button" class="primary" data-choice="kept" onClick={() => setMade(undefined)}>
              I have kept it
            </button>
          </div>
        </>
      ) : (
        <form
          class="form"
          onSubmit={(e) => {
            e.preventDefault();
            requests.run("make", async () => {
              setMade(await api.makeToken({ name: (texts.name ?? "").trim(), role: texts.role, ...(texts.for && { for: texts.for }) }));
              setTexts({ role: "read" });
              changed();
            });
          }}
        >
          <Field form={form} name="name" label="Name" required note="of an operator or a program; events and logs show it" />
          <Field form={form} name="role" label="It may" kind="choice" options={roles} />
          <Field form={form} name="for" label="Valid" kind="choice" options={lives} />
          <div class="buttons">
            <button class="primary" data-choice="make-token" disabled={requests.busy !== ""}>
              Make it
            </button>
          </div>
          <FormNote requests={requests} problems={problems} />
        </form>
      )}
    </section>
  );
}
