package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/chromedp"
)

// watchPage opens the page in a headless browser with the one-time login link, and waits
// until it shows an image being written to a disk. If a file name is given, it saves a
// screenshot there.
func (s *Site) watchPage(ctx context.Context, picture string) error {
	// The browser dies with the thread that starts it (chromedp sets a parent-death signal),
	// and the lab ends threads that were in a namespace. Keep this thread while the browser
	// runs.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		return fmt.Errorf("finding the browser: %w (make deps installs it)", err)
	}
	link, err := s.CLI(ctx, "login-link")
	if err != nil {
		return err
	}
	link = strings.Replace(strings.TrimSpace(link), fmt.Sprintf("127.0.0.1:%d", apiPort), s.API, 1)
	// Root needs --no-sandbox; all other browser options are defaults.
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.NoSandbox,
		chromedp.WindowSize(1280, 860), chromedp.WSURLReadTimeout(3*time.Minute))
	alloc, cancelAlloc := chromedp.NewExecAllocator(ctx, opts...)
	defer cancelAlloc()
	tab, cancelTab := chromedp.NewContext(alloc)
	defer cancelTab()
	var shot []byte
	err = chromedp.Run(tab,
		chromedp.Navigate(link),
		chromedp.WaitVisible(`[data-machine]`, chromedp.ByQuery),
		click(`[data-machine]`),
		chromedp.WaitVisible(`progress[data-progress]:not([data-progress="unknown"]):not([data-progress="0"])`, chromedp.ByQuery),
		chromedp.CaptureScreenshot(&shot),
	)
	if err != nil {
		return fmt.Errorf("watching the page: %w", err)
	}
	if picture != "" {
		return os.WriteFile(picture, shot, 0o644)
	}
	return nil
}

// click clicks on the first element of a selector. It looks again if the page replaces the element before the click.
func click(selector string) chromedp.Action {
	return chromedp.ActionFunc(func(ctx context.Context) error {
		for {
			err := chromedp.Click(selector, chromedp.ByQuery).Do(ctx)
			var e *cdproto.Error
			if gone := errors.As(err, &e) && e.Code == noSuchNode; !gone || ctx.Err() != nil {
				return err
			}
		}
	})
}

// noSuchNode is DevTools' code of "Could not find node with given id".
const noSuchNode = -32000
