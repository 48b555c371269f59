import { useEffect, useState } from "preact/hooks";

/** A command to run in a terminal, with a button that copies it. */
export function Command({ text }: { text: string }) {
  const [copied, set] = useState(false);
  useEffect(() => {
    if (!copied) return;
    const t = setTimeout(() => set(false), 2000);
    return () => clearTimeout(t);
  }, [copied]);
  return (
    <div class="command">
      <code>{text}</code>
      {/* The clipboard is there on loopback and over TLS only. */}
      {navigator.clipboard && (
        <button type="button" aria-label={`Copy ${text}`} onClick={() => navigator.clipboard.writeText(text).then(() => set(true), () => set(false))}>
          {copied ? "copied" : "copy"}
        </button>
      )}
    </div>
  );
}
