package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/ingotmetal/ingot/internal/text/human"
)

// progress shows the progress of a transfer on standard error. On a terminal it updates one line,
// otherwise it prints a line every ten seconds.
type progress struct {
	c        *Call
	terminal *os.File // nil if standard error is not a terminal
	total    int64
	verb     string // printed before the size; it ends with a space

	began, printed time.Time
	first          int64 // bytes that were done at the first call of at
	started        bool
	drawn          bool // the terminal shows a progress line that has no line feed yet
}

func newProgress(c *Call, total int64, verb string) *progress {
	p := &progress{c: c, total: total, verb: verb, began: time.Now(), printed: time.Now()}
	p.terminal, _ = terminalOf(c.ErrOrStderr())
	return p
}

// at is called when n bytes are done. It prints the progress, but not at every call.
func (p *progress) at(n int64) {
	now := time.Now()
	if !p.started {
		p.started, p.first, p.began = true, n, now
	}

	every := printEvery
	if p.terminal != nil {
		every = 200 * time.Millisecond
	}
	if now.Sub(p.printed) < every && (p.terminal == nil || n != p.total) {
		return
	}

	p.printed = now
	text := p.verb + human.Size(n)
	if p.total > 0 {
		text += fmt.Sprintf(" of %s, %d %%", human.Size(p.total), n*100/p.total)
	}

	text += speedText(n-p.first, now.Sub(p.began), p.total-n)
	if p.terminal == nil {
		p.c.PrintErrln(text)
		return
	}

	p.drawn = true
	_, _ = fmt.Fprintf(p.terminal, "\r\x1b[K%s", text) // errors are ignored: this is only progress
}

// Note ends the line of the progress and prints a message.
func (p *progress) Note(format string, args ...any) {
	p.end()
	p.c.Note(format, args...)
}

// end ends the line of the progress, if there is one.
func (p *progress) end() {
	if p.drawn {
		_, _ = fmt.Fprintln(p.terminal) // errors are ignored: this is only progress
		p.drawn = false
	}
}

// hashFile returns the SHA-256, in hex, of a file from its current position to its end. It shows the progress.
func hashFile(c *Call, f *os.File) (string, error) {
	st, err := f.Stat()
	if err != nil {
		return "", err
	}

	p := newProgress(c, st.Size(), "read ")
	defer p.end()

	sum := sha256.New()
	_, err = io.Copy(sum, &countingReader{r: f, ctx: c.Context(), at: p.at})
	if err != nil && !errors.Is(err, context.Canceled) {
		err = fmt.Errorf("reading %q: %w", f.Name(), err)
	}

	return hex.EncodeToString(sum.Sum(nil)), err
}

// countingReader calls at with the number of bytes that were read so far. It fails when its context ends.
type countingReader struct {
	r   io.Reader
	ctx context.Context
	n   int64
	at  func(n int64)
}

func (c *countingReader) Read(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}

	n, err := c.r.Read(b)
	if n > 0 {
		c.n += int64(n)
		c.at(c.n)
	}

	return n, err
}
