import type { ComponentChildren } from "preact";
import { Idle } from "./request";
import type { Store } from "./store";

/** The right column: what was chosen on the left, or a form. back leads to the list of all, where the columns do not fit side by side. */
export function Side({ store, back, all, label = "Details", children }: { store: Store; back: string; all: string; label?: string; children: ComponentChildren }) {
  return (
    <section class="side" aria-label={label} tabIndex={0}>
      <a class="back" href={back}>
        ← {all}
      </a>
      <Idle.Provider value={store.idle}>{children}</Idle.Provider>
    </section>
  );
}
