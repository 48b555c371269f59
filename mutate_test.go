package ingot

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var mutate = flag.String("mutate", "", `break this security property, or "all" ("make mutate")`)

var (
	securitySection = regexp.MustCompile(`(?ms)^### (S[0-9]+) .+?^\*Tests:\* (.+?)(?:\n\n|\z)`)
	failureMessage  = regexp.MustCompile(`(?m)^ +\w+_test\.go:[0-9]+: (\S.*)|^\s+Error:\s+(\S.*)|^(panic: .+)`)
)

// mutation is an edit of the product that breaks a security property, and the test that then must fail.
type mutation struct{ property, test, file, old, new string }

// check returns the changed text of the file and the folder of the test.
func (m mutation) check(tests map[string][]string) (changed, folder string, err error) {
	if folders := tests[m.test]; len(folders) != 1 {
		return "", "", fmt.Errorf("%s: test %s must be in one package, and is in %v", m.property, m.test, folders)
	}
	text, err := os.ReadFile(m.file)
	if err != nil {
		return "", "", fmt.Errorf("%s: %w", m.property, err)
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		return "", "", fmt.Errorf("%s: %s contains this text %d times, and must once: %s", m.property, m.file, n, m.old)
	}
	return strings.Replace(string(text), m.old, m.new, 1), tests[m.test][0], nil
}

// run compiles the test with the changed file, which "go test -overlay" puts in the place of the real one, and returns the first
// message of the failing test.
func (m mutation) run(t *testing.T, tests map[string][]string) (message string, err error) {
	changed, folder, err := m.check(tests)
	if err != nil {
		return "", err
	}
	file, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	dir := t.TempDir()
	replacement, overlay := filepath.Join(dir, filepath.Base(file)), filepath.Join(dir, "overlay.json")
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{file: replacement}})
	if err != nil {
		return "", err
	}
	for path, text := range map[string]string{replacement: changed, overlay: string(list)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return "", err
		}
	}

	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute) // the first row may compile everything
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", "test", "-v", "-vet=off", "-count=1", "-timeout=3m", "-overlay="+overlay,
		"-run=^"+m.test+"$", "./"+folder).CombinedOutput()
	text := string(out)
	switch {
	case ctx.Err() != nil || strings.Contains(text, "panic: test timed out"):
		return "", fmt.Errorf("%s hangs", m.test)
	case strings.Contains(text, "[build failed]") || strings.Contains(text, "[setup failed]"):
		return "", fmt.Errorf("the changed file does not compile: %s", text)
	case strings.Contains(text, "--- SKIP: "+m.test+" "):
		return "", fmt.Errorf("%s was skipped", m.test)
	case err == nil:
		return "", fmt.Errorf("STAYS GREEN: %s", m.test)
	case !strings.Contains(text, "--- FAIL: "+m.test+" ") && !strings.Contains(text, "\npanic: "):
		return "", fmt.Errorf("go test ends without a failing test: %w: %s", err, text)
	}
	if found := failureMessage.FindStringSubmatch(text); found != nil {
		return found[1] + found[2] + found[3], nil
	}
	return "fails without a message", nil
}

// TestMutate is "make mutate".
func TestMutate(t *testing.T) {
	if *mutate == "" {
		t.Skip("only with -args -mutate")
	}
	tests, failed, count := testFolders(t), 0, 0
	for _, m := range mutations {
		if *mutate != "all" && *mutate != m.property {
			continue
		}
		count++
		begin := time.Now()
		message, err := m.run(t, tests)
		if err != nil {
			failed++
			t.Errorf("%s %s: %v", m.property, m.file, err)
			continue
		}
		fmt.Printf("%-4s %3.0f s  %s\n            %.140s\n", m.property, time.Since(begin).Seconds(), m.test, message)
	}
	fmt.Printf("%d mutations, %d of them not noticed by their test\n", count, failed)
	if count == 0 {
		t.Errorf("no mutation of %s", *mutate)
	}
}

// TestMutations keeps the table complete: each property of docs/security.md has a mutation, or is in withoutMutation; each
// text to be changed is still there; each test is one of its property's.
func TestMutations(t *testing.T) {
	page, err := os.ReadFile("docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]string{} // property → its tests, as security.md names them
	for _, section := range securitySection.FindAllStringSubmatch(string(page), -1) {
		named[section[1]] = section[2]
	}
	tests, unused := testFolders(t), maps.Clone(withoutMutation)
	missing := maps.Clone(named)
	for _, m := range mutations {
		if _, _, err := m.check(tests); err != nil {
			t.Error(err)
		}
		if !strings.Contains(named[m.property], "`"+m.test+"`") {
			t.Errorf("%s: docs/security.md does not name %s", m.property, m.test)
		}
		delete(missing, m.property)
	}
	for property := range missing {
		if withoutMutation[property] == "" {
			t.Errorf("%s has no mutation: add one, or the reason to withoutMutation", property)
		}
		delete(unused, property)
	}
	if len(unused) > 0 {
		t.Errorf("these have a mutation, or are no properties: %v", slices.Sorted(maps.Keys(unused)))
	}
}

// testFolders returns the folders that contain each test.
func testFolders(t *testing.T) map[string][]string {
	folders := map[string][]string{}
	for _, f := range goFiles(t, true) {
		if !strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		for _, d := range f.syntax.Decls {
			if function, ok := d.(*ast.FuncDecl); ok && function.Recv == nil {
				folders[function.Name.Name] = append(folders[function.Name.Name], filepath.Dir(f.path))
			}
		}
	}
	return folders
}
