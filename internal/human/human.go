// Package human writes numbers, sizes and times for people.
package human

import (
	"fmt"
	"strings"
	"time"
)

// Count writes n with a noun: "1 image", "2 images".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Size writes bytes in binary units: "1.5 GiB".
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

// Time writes t in local time; the zero time is "".
func Time(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

// Ago writes how long ago t was; the zero time is "".
func Ago(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return Span(time.Since(t)) + " ago"
}

// Span writes a duration: to the second below an hour, to the minute below two
// days, in days from there on.
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
