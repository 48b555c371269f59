package actions

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
	"github.com/ingotmetal/ingot/worker-agent/fetch"
)

// hegelTimeout is the time limit for one request to a metadata service.
const hegelTimeout = 10 * time.Second

// readContents returns the text that writefile writes. The text is the value of CONTENTS, the value of BOOTCONFIG_CONTENTS in the kernel's
// format, or the user-data from the first URL in HEGEL_URLS that returns it.
func readContents(ctx context.Context, t *Task) (string, error) {
	urls, err := action.HegelURLs(t.env)
	switch {
	case err != nil:
		return "", err
	case len(urls) > 0:
		return hegelUserData(ctx, t, urls)
	case t.env[action.BootConfigVariable] != "":
		return string(bootConfigFile(t.env[action.BootConfigVariable])), nil
	}
	return t.env[action.ContentsVariable], nil
}

// bootConfigFile returns text as a boot configuration that follows an empty initrd. The format is: the text, a null byte, further null
// bytes up to a multiple of 4, the number of all these bytes, their sum (both 32 bits, little endian), and a magic line. See "Boot
// Configuration" in the kernel's admin guide.
func bootConfigFile(text string) []byte {
	const magic = "#BOOTCONFIG\n" // 12 bytes, so the total length stays a multiple of 4

	out := append([]byte(text), 0)
	for len(out)%4 != 0 {
		out = append(out, 0)
	}

	var sum uint32
	for _, b := range out {
		sum += uint32(b)
	}

	size := uint32(len(out))
	out = binary.LittleEndian.AppendUint32(out, size)
	out = binary.LittleEndian.AppendUint32(out, sum)
	return append(out, magic...)
}

// hegelUserData requests the user-data from one metadata service after the other, and returns the first that it gets.
func hegelUserData(ctx context.Context, t *Task, urls []string) (string, error) {
	var errs []error
	for _, address := range urls {
		text, err := fetchUserData(ctx, t, address+"/2009-04-04/user-data")
		if err == nil {
			return text, nil
		}
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		errs = append(errs, err)
		t.logf("%v", err)
	}
	return "", fmt.Errorf("reading the user-data of %s: %w", action.HegelVariable, errors.Join(errs...))
}

// fetchUserData returns the user-data at address. Errors do not contain a password that is part of address.
func fetchUserData(ctx context.Context, t *Task, address string) (_ string, err error) {
	ctx, cancel := context.WithTimeout(ctx, hegelTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", errors.New("making a request: invalid address")
	}

	shown := req.URL.Scheme + "://" + req.URL.Host + req.URL.Path
	do := fetch.NewClient().Do
	if t.machine.Server.Owns(req.URL) {
		do = t.machine.Server.Do
	}

	resp, err := do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // unlike err, u.Err does not contain the address
		}
		return "", fmt.Errorf("getting %s: %w", shown, err)
	}
	defer func() { _ = resp.Body.Close() }() // only read from
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("getting %s: %w", shown, &fetch.StatusError{Code: resp.StatusCode})
	}

	b, err := io.ReadAll(io.LimitReader(resp.Body, filesys.MaxText+1))
	if err == nil && len(b) > filesys.MaxText {
		err = fmt.Errorf("the answer is longer than %d bytes", filesys.MaxText)
	}
	if err != nil {
		return "", fmt.Errorf("getting %s: %w", shown, err)
	}
	return string(b), nil
}
