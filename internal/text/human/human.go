// Package human formats numbers, sizes and times as text, and reads durations.
package human

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/problem"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
)

// Count formats n with a noun: "1 image", "2 images".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Size formats bytes in binary units: "1.5 GiB".
func Size(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}

	v, i := float64(n)/1024, 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	return fmt.Sprintf("%.1f %ciB", v, units[i])
}

// Time formats t in local time; the zero time is "".
func Time(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

// Ago formats the time since t; the zero time is "".
func Ago(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return Span(time.Since(t)) + " ago"
}

// Span formats a duration: in seconds below an hour, in minutes below two days, otherwise in
// days.
func Span(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Hour:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}

// DurationPattern is a regular expression for the texts that ParseDuration accepts.
const DurationPattern = `^[+-]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$|^[0-9]+$`

// ParseDuration parses a duration such as "24h", or a whole number of seconds. Its error is a problem.Problem.
func ParseDuration(s string) (time.Duration, error) {
	if d, err := time.ParseDuration(s); err == nil {
		return d, nil
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, problem.Problem{
			What:   fmt.Sprintf("invalid duration %q", plaintext.Clip(s, 60)),
			Remedy: `write for example "1h" or "24h", or a number of seconds`,
		}
	}
	return time.Duration(n) * time.Second, nil
}
