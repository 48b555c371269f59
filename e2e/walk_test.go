package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// walkPage opens the page as a person who was given a link does, and carries out
// steps there.
func (s *Site) walkPage(ctx context.Context, t *testing.T, steps ...chromedp.Action) {
	t.Helper()
	runtime.LockOSThread() // as in watchPage
	defer runtime.UnlockOSThread()
	chromium, err := exec.LookPath("chromium")
	require.NoError(t, err, "make deps installs it")
	link := strings.Replace(strings.TrimSpace(s.must(ctx, t, "login-link")), fmt.Sprintf("127.0.0.1:%d", apiPort), s.API, 1)
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.NoSandbox,
		chromedp.WindowSize(1440, 1100), chromedp.WSURLReadTimeout(3*time.Minute))
	alloc, cancelAlloc := chromedp.NewExecAllocator(ctx, opts...)
	defer cancelAlloc()
	tab, cancelTab := chromedp.NewContext(alloc)
	defer cancelTab()
	// The first command starts the browser, which would end with a time-out of
	// that command alone.
	require.NoError(t, chromedp.Run(tab, chromedp.Navigate(link)))
	within, cancel := context.WithTimeout(tab, 2*time.Minute)
	defer cancel()
	if err := chromedp.Run(within, steps...); err != nil {
		var text string
		_ = chromedp.Run(tab, chromedp.Evaluate(`document.body.innerText`, &text)) // only for the message
		t.Fatalf("the page: %v\n%s", err, text)
	}
}

// see waits until the page shows what selector names.
func see(selector string) chromedp.Action { return chromedp.WaitVisible(selector, chromedp.ByQuery) }

// click clicks there.
func click(selector string) chromedp.Action { return chromedp.Click(selector, chromedp.ByQuery) }
