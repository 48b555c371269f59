// Package human formats numbers, sizes and times for people.
package human

import (
	"fmt"
	"strings"
	"time"
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
