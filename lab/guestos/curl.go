package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// curl is as much of curl(1) as boot scripts use: -s -S -f -k -L -o -O -X -H -d --data-urlencode --retry --retry-delay
// --retry-connrefused --retry-all-errors --max-time -m --connect-timeout.
func curl(args []string, out, errs io.Writer) int {
	method, to, body := "", "", ""
	header := http.Header{"User-Agent": {"curl/8 (ingot lab)"}}
	failing, loud, silent := false, false, false
	retries, delay, limit := 0, time.Second, 60*time.Second
	var at []string
	number := func(s string) int { n, _ := strconv.Atoi(strings.Split(s, ".")[0]); return n } // no number is 0
	for i := 0; i < len(args); i++ {
		a := args[i]
		value := func() string {
			if i++; i < len(args) {
				return args[i]
			}
			return ""
		}
		if strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "--") && len(a) > 2 { // -fsS is -f -s -S, -XPOST is -X POST
			rest := a[2:]
			if strings.ContainsRune("XHdom", rune(a[1])) {
				args = append(args[:i:i], append([]string{a[:2], rest}, args[i+1:]...)...)
			} else {
				args = append(args[:i:i], append([]string{a[:2], "-" + rest}, args[i+1:]...)...)
			}
			a = args[i]
		}
		switch a {
		case "-s", "--silent":
			silent = true
		case "-S", "--show-error":
			loud = true
		case "-f", "--fail":
			failing = true
		case "-k", "--insecure", "-L", "--location", "-4", "--ipv4", "--retry-connrefused", "--retry-all-errors":
		case "-o", "--output":
			to = value()
		case "-X", "--request":
			method = value()
		case "-H", "--header":
			name, v, _ := strings.Cut(value(), ":")
			header.Set(name, strings.TrimSpace(v))
		case "-d", "--data", "--data-raw", "--data-binary", "--data-ascii", "--data-urlencode":
			v := value()
			if file, ok := strings.CutPrefix(v, "@"); ok && a != "--data-raw" {
				b, err := os.ReadFile(file)
				if err != nil {
					fmt.Fprintln(errs, "curl: (26)", err) // the console is gone otherwise
					return 26
				}
				v = string(b)
			}
			if body != "" {
				body += "&"
			}
			body += v
			if method == "" {
				method = http.MethodPost
			}
		case "--retry":
			retries = number(value())
		case "--retry-delay":
			delay = time.Duration(number(value())) * time.Second
		case "-m", "--max-time", "--connect-timeout":
			limit = time.Duration(number(value())) * time.Second
		case "--retry-max-time", "-w", "--write-out", "--cacert":
			value()
		default:
			if strings.HasPrefix(a, "-") {
				fmt.Fprintln(errs, "curl: (2) unknown option", a) // the console is gone otherwise
				return 2
			}
			at = append(at, a)
		}
	}
	if method == "" {
		method = http.MethodGet
	}
	if body != "" && header.Get("Content-Type") == "" {
		header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	code := 2
	for _, u := range at {
		for try := 0; ; try++ {
			if code = curlOnce(method, u, body, header, to, failing, limit, out, errs, loud || !silent); code == 0 || try >= retries {
				break
			}
			time.Sleep(delay)
		}
	}
	return code
}

func curlOnce(
	method, u, body string,
	header http.Header,
	to string,
	failing bool,
	limit time.Duration,
	out, errs io.Writer,
	loud bool,
) int {
	trouble := func(code int, err error) int {
		if loud {
			fmt.Fprintf(errs, "curl: (%d) %v\n", code, err) // the console is gone otherwise
		}
		return code
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, u, strings.NewReader(body))
	if err != nil {
		return trouble(3, err)
	}
	req.Header = header
	res, err := client().Do(req)
	if err != nil {
		return trouble(7, err)
	}
	defer res.Body.Close() // only read from
	if failing && res.StatusCode >= 400 {
		return trouble(22, fmt.Errorf("the requested URL returned error: %s", res.Status))
	}
	if to != "" {
		f, err := os.Create(to)
		if err != nil {
			return trouble(23, err)
		}
		defer f.Close() // written out by the copy
		out = f
	}
	if _, err := io.Copy(out, res.Body); err != nil {
		return trouble(18, err)
	}
	return 0
}
