package template

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig/v3"
	"go.yaml.in/yaml/v3"
)

// denied are functions of sprig's hermetic set that templates do not have.
var denied = []string{
	// make much out of little
	"until", "untilStep", "seq", "repeat",
	// make keys and passwords, slowly or differently each time
	"derivePassword", "bcrypt", "htpasswd", "encryptAES", "decryptAES", "genPrivateKey", "buildCustomCert",
	"genCA", "genCAWithKey", "genSelfSignedCert", "genSelfSignedCertWithKey", "genSignedCert", "genSignedCertWithKey",
	// say something else each time, or in each time zone
	"randInt", "shuffle", "ago", "durationRound", "toDate", "mustToDate", "must_date_modify", "mustDateModify",
	"unixEpoch",
}

// functions returns what templates may call: sprig's hermetic functions less
// those denied, with the ones of Tinkerbell, all bounded by g.
//
// contains, hasPrefix and hasSuffix take the part before the whole, as sprig's
// do ({{ .x | contains "y" }}).
func functions(g *guard) template.FuncMap {
	all := sprig.HermeticTxtFuncMap()
	for _, name := range denied {
		delete(all, name)
	}
	for name, f := range map[string]any{
		"formatPartition":       formatPartition,
		"netmaskToPrefixLength": netmaskToPrefixLength,
		"netmaskToCIDR":         netmaskToPrefixLength,
		"toYaml":                toYAML,
		"fromYaml":              fromYAML,
		// Those of the standard library and of sprig that could make a large
		// text out of small arguments before its size can be checked.
		"printf":   printf,
		"print":    fmt.Sprint,
		"println":  fmt.Sprintln,
		"html":     template.HTMLEscaper,
		"js":       template.JSEscaper,
		"urlquery": template.URLQueryEscaper,
		"indent":   indent,
		"nindent":  func(spaces int, s string) (string, error) { s, err := indent(spaces, s); return "\n" + s, err },
		"replace":  replace,
		"join":     joiner(all["join"]),
		"wrapWith": wrapper(all["wrapWith"]),
	} {
		all[name] = f
	}

	for _, name := range []string{"regexReplaceAll", "regexReplaceAllLiteral"} {
		f, ok := all[name].(func(string, string, string) string)
		must, mustOK := all["must"+strings.ToUpper(name[:1])+name[1:]].(func(string, string, string) (string, error))
		if !ok || !mustOK {
			panic("sprig's " + name + " has another type") // told by any test, at the change of sprig's version
		}

		all[name] = func(regex, s, repl string) (string, error) {
			if err := replacement(s, repl); err != nil {
				return "", err
			}
			return f(regex, s, repl), nil
		}

		all["must"+strings.ToUpper(name[:1])+name[1:]] = func(regex, s, repl string) (string, error) {
			if err := replacement(s, repl); err != nil {
				return "", err
			}
			return must(regex, s, repl)
		}
	}

	for name, f := range all {
		if strings.HasPrefix(strings.ToLower(strings.TrimPrefix(name, "must")), "regex") && name != "regexQuoteMeta" {
			f = smallRegex(f)
		}
		all[name] = g.bounded(f)
	}
	return all
}

var errLarge = limitError("makes a value that is too large")

// formatPartition returns the path of a partition of a disk.
func formatPartition(disk string, number int) string {
	switch {
	case strings.HasPrefix(disk, "/dev/disk/"):
		return fmt.Sprintf("%s-part%d", disk, number)
	case disk != "" && disk[len(disk)-1] >= '0' && disk[len(disk)-1] <= '9':
		return fmt.Sprintf("%sp%d", disk, number)
	}
	return fmt.Sprintf("%s%d", disk, number)
}

// netmaskToPrefixLength returns "24" for "255.255.255.0".
func netmaskToPrefixLength(netmask string) (string, error) {
	ip := net.ParseIP(netmask).To4()
	if ip == nil {
		return "", fmt.Errorf("%q is not an IPv4 netmask", netmask)
	}
	ones, bits := net.IPMask(ip).Size()
	if bits == 0 {
		return "", fmt.Errorf("%q is not an IPv4 netmask: its bits have gaps", netmask)
	}
	return strconv.Itoa(ones), nil
}

func toYAML(v any) (string, error) {
	b, err := yaml.Marshal(v)
	return strings.TrimSuffix(string(b), "\n"), err
}

func fromYAML(s string) (any, error) {
	var v any
	err := yaml.Unmarshal([]byte(s), &v)
	return v, err
}

var widths = regexp.MustCompile(`%[^a-zA-Z%]*`)

// printf is fmt.Sprintf without the forms that repeat arguments or fill up
// with blanks by the megabyte.
func printf(format string, args ...any) (string, error) {
	if len(format) > 64<<10 {
		return "", errLarge
	}

	for _, verb := range widths.FindAllString(format, -1) {
		if strings.ContainsAny(verb, "*[") {
			return "", errors.New("printf: * and [n] are not supported")
		}
		for _, digits := range strings.FieldsFunc(verb, func(r rune) bool { return r < '0' || r > '9' }) {
			if n, err := strconv.Atoi(digits); err != nil || n > 256 {
				return "", errors.New("printf: a width over 256 is not supported")
			}
		}
	}
	return fmt.Sprintf(format, args...), nil
}

func indent(spaces int, s string) (string, error) {
	if spaces < 0 || spaces > 256 {
		return "", errors.New("indent: between 0 and 256 blanks are supported")
	}
	if (strings.Count(s, "\n")+1)*spaces+len(s) > maxWeight {
		return "", errLarge
	}
	pad := strings.Repeat(" ", spaces)
	return pad + strings.ReplaceAll(s, "\n", "\n"+pad), nil
}

func replace(old, by, s string) (string, error) {
	if strings.Count(s, old)*len(by)+len(s) > maxWeight {
		return "", errLarge
	}
	return strings.ReplaceAll(s, old, by), nil
}

func joiner(f any) any {
	join, ok := f.(func(string, any) string)
	if !ok {
		panic("sprig's join has another type") // as above
	}
	return func(sep string, v any) (string, error) {
		if len(sep)*maxLength > maxWeight {
			return "", errLarge
		}
		return join(sep, v), nil
	}
}

func wrapper(f any) any {
	wrap, ok := f.(func(int, string, string) string)
	if !ok {
		panic("sprig's wrapWith has another type") // as above
	}
	return func(width int, sep, s string) (string, error) {
		if len(sep)*(2*len(s)/max(width, 1)+2)+len(s) > maxWeight {
			return "", errLarge
		}
		return wrap(width, sep, s), nil
	}
}

// replacement refuses what could grow too far: as many matches as s has
// characters, each replaced by repl, which may itself hold all of a match.
func replacement(s, repl string) error {
	if (len(s)+1)*(len(repl)+1) > 4*maxWeight {
		return errLarge
	}
	return nil
}

// smallRegex bounds the product of an expression and the text that it runs
// over: RE2's time is linear in both.
func smallRegex(f any) any {
	const maxRegex, maxText = 256, 16 << 10
	check := func(regex, s string) error {
		if len(regex) > maxRegex || len(s) > maxText {
			return limitError(fmt.Sprintf("runs a regular expression of more than %d bytes, or over a text of more than %d",
				maxRegex, maxText))
		}
		return nil
	}

	switch f := f.(type) {
	case func(string, string) bool:
		return func(regex, s string) (bool, error) {
			if err := check(regex, s); err != nil {
				return false, err
			}
			return f(regex, s), nil
		}

	case func(string, string) (bool, error):
		return func(regex, s string) (bool, error) {
			if err := check(regex, s); err != nil {
				return false, err
			}
			return f(regex, s)
		}

	case func(string, string) string:
		return func(regex, s string) (string, error) {
			if err := check(regex, s); err != nil {
				return "", err
			}
			return f(regex, s), nil
		}

	case func(string, string) (string, error):
		return func(regex, s string) (string, error) {
			if err := check(regex, s); err != nil {
				return "", err
			}
			return f(regex, s)
		}

	case func(string, string, int) []string:
		return func(regex, s string, n int) ([]string, error) {
			if err := check(regex, s); err != nil {
				return nil, err
			}
			return f(regex, s, n), nil
		}

	case func(string, string, int) ([]string, error):
		return func(regex, s string, n int) ([]string, error) {
			if err := check(regex, s); err != nil {
				return nil, err
			}
			return f(regex, s, n)
		}

	case func(string, string, string) (string, error):
		return func(regex, s, repl string) (string, error) {
			if err := check(regex, s); err != nil {
				return "", err
			}
			return f(regex, s, repl)
		}
	}

	panic(fmt.Sprintf("sprig has a regular expression function of type %T", f)) // as above
}
