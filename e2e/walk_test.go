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

// openPage starts a headless browser and opens the page with the one-time login link. The browser
// ends with the test.
func (s *Site) openPage(ctx context.Context, t *testing.T) (tab context.Context) {
	t.Helper()
	tab = browser(ctx, t)
	link := strings.Replace(strings.TrimSpace(s.must(ctx, t, "login-link")), fmt.Sprintf("127.0.0.1:%d", apiPort), s.API, 1)
	require.NoError(t, chromedp.Run(tab, chromedp.Navigate(link)))
	return tab
}

// browser starts a headless browser with further options, which ends with the test.
func browser(ctx context.Context, t *testing.T, further ...chromedp.ExecAllocatorOption) (tab context.Context) {
	t.Helper()
	runtime.LockOSThread() // as in watchPage; the clean-up is also on this thread
	t.Cleanup(runtime.UnlockOSThread)
	chromium, err := exec.LookPath("chromium")
	require.NoError(t, err, "make deps installs it")
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.NoSandbox,
		chromedp.WindowSize(1440, 1100), chromedp.WSURLReadTimeout(3*time.Minute))
	alloc, cancelAlloc := chromedp.NewExecAllocator(ctx, append(opts, further...)...)
	t.Cleanup(cancelAlloc)
	tab, cancelTab := chromedp.NewContext(alloc)
	t.Cleanup(cancelTab)
	// The first command starts the browser, so it must not have a time-out of its own.
	require.NoError(t, chromedp.Run(tab))
	return tab
}

// onPage runs steps on the page; what describes the steps in the error of a time-out.
func onPage(tab context.Context, t *testing.T, what string, steps ...chromedp.Action) {
	t.Helper()
	within, cancel := context.WithTimeout(tab, 2*time.Minute)
	defer cancel()
	if err := chromedp.Run(within, steps...); err != nil {
		var text string
		_ = chromedp.Run(tab, chromedp.Evaluate(`document.body.innerText`, &text)) // only for the message
		t.Fatalf("%s: %v\n%s", what, err, text)
	}
}

// walkPage opens the page with a login link and runs steps there.
func (s *Site) walkPage(ctx context.Context, t *testing.T, steps ...chromedp.Action) {
	t.Helper()
	tab := s.openPage(ctx, t)
	onPage(tab, t, "the page", steps...)
	require.NoError(t, chromedp.Cancel(tab), "closing the browser")
}

// see waits until the page shows an element that matches selector.
func see(selector string) chromedp.Action { return chromedp.WaitVisible(selector, chromedp.ByQuery) }
