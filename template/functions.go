package template

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig/v3"
	"github.com/ingotmetal/ingot/action"
	"go.yaml.in/yaml/v3"
)

// denied are the functions of sprig.HermeticTxtFuncMap that templates must not use.
var denied = []string{
	// functions that make large values from small ones
	"until", "untilStep", "seq", "repeat",
	// functions that make keys or passwords, which takes long or has a different result each time
	"derivePassword", "bcrypt", "htpasswd", "encryptAES", "decryptAES", "genPrivateKey", "buildCustomCert",
	"genCA", "genCAWithKey", "genSelfSignedCert", "genSelfSignedCertWithKey", "genSignedCert", "genSignedCertWithKey",
	// functions whose results depend on chance, the time or the time zone
	"randInt", "shuffle", "ago", "durationRound", "toDate", "mustToDate", "must_date_modify", "mustDateModify",
	"unixEpoch",
}

// functionNames returns the names of all functions that templates can call, including those of text/template.
func functionNames() []string {
	builtin := []string{"and", "or", "not", "eq", "ne", "lt", "le", "gt", "ge", "index", "len"}
	return slices.AppendSeq(builtin, maps.Keys(functions(newGuard(context.Background()))))
}

// functions returns the functions that templates can call: sprig's hermetic functions except those in denied, and the functions of
// Tinkerbell. g limits the work of each of them.
//
// In contains, hasPrefix and hasSuffix, the first argument is the text to find, as in sprig: {{ .x | contains "y" }}.
func functions(g *guard) template.FuncMap {
	all := sprig.HermeticTxtFuncMap()
	for _, name := range denied {
		delete(all, name)
	}
	maps.Copy(all, template.FuncMap{
		"formatPartition":       action.PartitionPath,
		"netmaskToPrefixLength": netmaskToPrefixLength,
		"netmaskToCIDR":         netmaskToPrefixLength,
		"toYaml":                toYAML,
		"fromYaml":              fromYAML,
		// These functions belong to text/template. They are listed here so that g limits them, too.
		"printf":   fmt.Sprintf,
		"print":    fmt.Sprint,
		"println":  fmt.Sprintln,
		"html":     template.HTMLEscaper,
		"js":       template.JSEscaper,
		"urlquery": template.URLQueryEscaper,
	})

	for name, f := range all {
		all[name] = g.bounded(f, checksOf(name))
	}
	return all
}

// A check returns an error if, with these arguments, a function would take too long or return a value that is too large. It is called
// before the function, because the size of a result can only be measured when it is too late.
type check func(args []reflect.Value) error

// checksOf returns the checks for calls of the template function called name.
func checksOf(name string) (out []check) {
	name = strings.ToLower(strings.TrimPrefix(name, "must"))
	if strings.HasPrefix(name, "regex") && name != "regexquotemeta" {
		out = append(out, checkRegex)
	}
	if size, ok := sizes[name]; ok {
		out = append(out, sized(size))
	}
	if name == "printf" {
		out = append(out, checkFormat)
	}
	return out
}

// sizes has functions that compute, from the arguments of a template function, how large its result can be at most. The key is the name of
// the template function in lower case and without "must".
var sizes = map[string]func(args []reflect.Value) int{
	"indent":  sizeIndented,
	"nindent": sizeIndented,
	"replace": func(a []reflect.Value) int {
		return strings.Count(a[2].String(), a[0].String())*a[1].Len() + a[2].Len()
	},
	"join": func(a []reflect.Value) int { return a[0].Len() * maxLength },
	"wrapwith": func(a []reflect.Value) int {
		return a[1].Len()*(2*a[2].Len()/max(int(a[0].Int()), 1)+2) + a[2].Len()
	},
	"regexreplaceall":        sizeReplaced,
	"regexreplaceallliteral": sizeReplaced,
}

func sizeIndented(a []reflect.Value) int {
	return (strings.Count(a[1].String(), "\n")+1)*min(int(a[0].Int()), maxWeight+1) + a[1].Len()
}

// sizeReplaced assumes that each character of the text matches and that its replacement contains the whole match. This is the worst case,
// and too strict for usual arguments; therefore it divides the size by four.
func sizeReplaced(a []reflect.Value) int { return (a[1].Len() + 1) * (a[2].Len() + 1) / 4 }

// sized returns a check that refuses a call if size says that the result could be larger than maxWeight.
func sized(size func(args []reflect.Value) int) check {
	return func(args []reflect.Value) error {
		if size(args) > maxWeight {
			return errLarge
		}
		return nil
	}
}

// checkRegex limits the length of a regular expression and the length of the text in which it searches, because the time that RE2 needs
// grows with both.
func checkRegex(args []reflect.Value) error {
	const maxRegex, maxText = 256, 16 << 10
	if args[0].Len() > maxRegex || args[1].Len() > maxText {
		return limitError(fmt.Sprintf("runs a regular expression of more than %d bytes, or over a text of more than %d bytes",
			maxRegex, maxText))
	}
	return nil
}

var widths = regexp.MustCompile(`%[^a-zA-Z%]*`)

// checkFormat returns an error if a format of printf could repeat arguments, or could make the result megabytes long with blanks.
func checkFormat(args []reflect.Value) error {
	format := args[0].String()
	if len(format) > 64<<10 {
		return errLarge
	}

	for _, verb := range widths.FindAllString(format, -1) {
		if strings.ContainsAny(verb, "*[") {
			return errors.New("* and [n] are not supported in a format")
		}
		for _, digits := range strings.FieldsFunc(verb, func(r rune) bool { return r < '0' || r > '9' }) {
			if n, err := strconv.Atoi(digits); err != nil || n > 256 {
				return errors.New("a width or precision over 256 is not supported in a format")
			}
		}
	}
	return nil
}

// netmaskToPrefixLength returns the prefix length of a netmask, such as "24" for "255.255.255.0".
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
