package strictyaml

import (
	"fmt"
	"slices"
	"strings"
)

// Suggest returns the remedy for an unknown key: the nearest known key, or all known keys.
func Suggest(key string, known []string) string {
	if best := Nearest(key, known); best != "" {
		return fmt.Sprintf("did you mean %q?", best)
	}
	if len(known) == 0 {
		return "no keys are allowed here"
	}
	return "known keys: " + strings.Join(slices.Sorted(slices.Values(known)), ", ")
}

// Nearest returns the key of known that is most similar to key, or "" if none is similar enough to be meant.
func Nearest(key string, known []string) string {
	best, distance := "", len(key)/2+1
	for _, name := range slices.Sorted(slices.Values(known)) {
		if d := levenshtein(fold(key), fold(name)); d < distance {
			best, distance = name, d
		}
	}
	return best
}

// fold maps lease_time, lease-time and leaseTime to the same text.
func fold(s string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(s))
}

func levenshtein(a, b string) int {
	if len(a) > 100 || len(b) > 100 {
		return max(len(a), len(b))
	}

	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}

	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost = 1 + min(diagonal, row[j], row[j-1])
			}
			diagonal, row[j] = row[j], cost
		}
	}

	return row[len(b)]
}
