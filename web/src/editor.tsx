import { useRef } from "preact/hooks";
import type { Problem } from "./api";
import { problemText } from "./form";

interface EditorProps {
  id: string;
  text: string;
  label: string;
  problems: readonly Problem[];
  /** How many lines are shown at least. */
  rows?: number;
  readOnly?: boolean;
  onText: (text: string) => void;
}

/** A text with numbered lines, at which its problems are shown. */
export function Editor({ id, text, label, problems, rows = 10, readOnly = false, onText }: EditorProps) {
  const area = useRef<HTMLTextAreaElement>(null);
  const gutter = useRef<HTMLDivElement>(null);
  const wrong = new Set(problems.map((p) => p.line ?? 0));
  const lines = text.split("\n");
  const goTo = (line: number) => {
    const a = area.current;
    if (!a) return;
    const from = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    a.focus();
    a.setSelectionRange(from, from + (lines[line - 1]?.length ?? 0));
  };
  return (
    <div class="editor-box">
      <div class="editor">
        <div class="gutter" ref={gutter} aria-hidden="true">
          {lines.map((_, i) => (
            <span key={i} class={wrong.has(i + 1) ? "wrong" : undefined}>
              {i + 1}
            </span>
          ))}
        </div>
        <textarea
          ref={area}
          id={`field-${id}`}
          name={id}
          aria-label={label}
          aria-describedby={problems.length > 0 ? `${id}-problems` : undefined}
          aria-invalid={problems.length > 0 ? "true" : undefined}
          wrap="off"
          spellcheck={false}
          autocapitalize="off"
          rows={Math.min(30, Math.max(rows, lines.length + 1))}
          readOnly={readOnly}
          value={text}
          onInput={(e) => onText(e.currentTarget.value)}
          onScroll={(e) => gutter.current && (gutter.current.scrollTop = e.currentTarget.scrollTop)}
        />
      </div>
      {problems.length > 0 && (
        <ul class="failure" id={`${id}-problems`} data-problems>
          {problems.map((p, i) => (
            <li key={i}>
              {p.line ? (
                <button type="button" class="link" data-line={p.line} onClick={() => goTo(p.line!)}>
                  line {p.line}
                </button>
              ) : null}{" "}
              {[p.field, problemText(p)].filter(Boolean).join(": ")}
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}
