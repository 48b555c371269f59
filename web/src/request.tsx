import { createContext } from "preact";
import { useContext, useState } from "preact/hooks";
import { Refused } from "./api";
import { Command } from "./command";

/** What became of the last request: none, under way, or refused. */
export interface Requests {
  /** The request that is under way, or why there may be none; "" = one may be sent. */
  busy: string;
  refused?: Refused;
  /** Sends f under a name unless another request is under way. */
  run(name: string, f: () => Promise<unknown>): void;
}

/** Whether nothing may be done from this page now: the connection is lost, or the session may only look. */
export const Idle = createContext(false);

export function useRequests(): Requests {
  const idle = useContext(Idle);
  const [busy, setBusy] = useState("");
  const [refused, setRefused] = useState<Refused>();
  return {
    busy: busy || (idle ? "idle" : ""),
    refused,
    run(name, f) {
      if (busy) return;
      setBusy(name);
      setRefused(undefined);
      f()
        .catch((e: unknown) => setRefused(e instanceof Refused ? e : new Refused(0, String(e))))
        .finally(() => setBusy(""));
    },
  };
}

export function RefusedNote({ requests }: { requests: { refused?: Refused } }) {
  const r = requests.refused;
  if (!r) return null;
  return (
    <div class="refused" role="alert">
      <p>{r.status === 401 ? "The session has ended." : r.message}</p>
      {r.status === 401 ? <Command text="ingot login-link" /> : r.next && <Command text={r.next} />}
    </div>
  );
}

/** A button that asks once more, in place, when what it does cannot be undone. */
export function Ask(props: { label: string; sure?: string; note?: string; kind?: string; disabled?: boolean; choice: string; onDo: () => void }) {
  const [asking, set] = useState(false);
  if (!asking)
    return (
      <button type="button" class={props.kind} disabled={props.disabled} data-choice={props.choice} onClick={() => (props.sure ? set(true) : props.onDo())}>
        {props.label}
      </button>
    );
  return (
    <span class="asking" onKeyDown={(e) => e.key === "Escape" && set(false)}>
      {props.note && <span>{props.note}</span>}
      <button
        type="button"
        class="danger"
        disabled={props.disabled}
        data-choice-sure={props.choice}
        ref={(b) => b?.focus()}
        onClick={() => {
          set(false);
          props.onDo();
        }}
      >
        {props.sure}
      </button>
      <button type="button" onClick={() => set(false)}>
        No
      </button>
    </span>
  );
}
