package lab

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ipxe runs a script like iPXE: the command after || or && runs depending on the result of the
// command before it, and a line that fails ends the script. It supports the commands that boot
// scripts use.
type ipxe struct {
	vars  map[string]string
	say   func(text string)
	pause func(d time.Duration) bool       // false if the power was cut
	fetch func(kind, url string) error     // kind: "kernel" or "initrd"
	load  func(url string) (string, error) // a script
	steps int                              // number of commands so far
	next  string                           // script that replaces this one
	label string                           // target of goto
	ended bool                             // set by exit
	image string                           // the kernel's command line
	boots bool
}

// maxSteps ends a script with an endless loop.
const maxSteps = 10_000

// run returns the command line of the kernel that the script boots, or "" if it continues with the
// disk.
func (x *ipxe) run(script string) (cmdline string, err error) {
	lines := strings.Split(script, "\n")
	if strings.TrimSpace(lines[0]) != "#!ipxe" {
		return "", errors.New("running a script: it does not begin with #!ipxe")
	}
	for at := 1; at < len(lines); at++ {
		line := strings.TrimSpace(lines[at])
		if line == "" || line[0] == '#' || line[0] == ':' {
			continue
		}
		x.label = ""
		if err := x.line(strings.Fields(line)); err != nil {
			return "", fmt.Errorf("running %q: %w", line, err)
		}
		switch {
		case x.boots:
			return x.image, nil
		case x.ended:
			return "", nil
		case x.next != "":
			script, x.next = x.next, ""
			return x.run(script)
		case x.label != "":
			if at = label(lines, x.label); at < 0 {
				return "", fmt.Errorf("running %q: there is no label %q", line, x.label)
			}
		}
	}
	return "", nil
}

func label(lines []string, name string) int {
	for i, l := range lines {
		if strings.TrimSpace(l) == ":"+name {
			return i
		}
	}
	return -1
}

// line runs the commands of one line. It returns the error of the last command that ran.
func (x *ipxe) line(words []string) error {
	var err error
	operator := ""
	for begin := 0; begin <= len(words); {
		end := begin
		for end < len(words) && words[end] != "||" && words[end] != "&&" {
			end++
		}
		if operator == "" || operator == "&&" && err == nil || operator == "||" && err != nil {
			if err = x.command(words[begin:end]); x.label != "" || x.next != "" || x.ended || x.boots {
				return nil
			}
		}
		if end < len(words) {
			operator = words[end]
		}
		begin = end + 1
	}
	return err
}

func (x *ipxe) command(words []string) error {
	if x.steps++; x.steps > maxSteps {
		return errors.New("the script does not end")
	}
	if len(words) == 0 {
		return nil
	}
	args := make([]string, 0, len(words))
	for _, w := range words[1:] {
		args = append(args, x.expand(w))
	}
	arg := func(n int) string {
		if n < len(args) {
			return args[n]
		}
		return ""
	}
	switch words[0] {
	case "echo":
		x.say(strings.Join(args, " "))
	case "set":
		name, _, _ := strings.Cut(arg(0), ":") // the type only affects the display
		x.vars[name] = strings.Join(args[min(1, len(args)):], " ")
	case "inc":
		n, _ := strconv.Atoi(x.vars[arg(0)]) // an invalid number counts as 0
		x.vars[arg(0)] = strconv.Itoa(n + 1)
	case "iseq":
		if arg(0) != arg(1) {
			return errors.New("not equal")
		}
	case "isset":
		if arg(0) == "" {
			return errors.New("not set")
		}
	case "kernel", "initrd":
		for len(args) > 1 && strings.HasPrefix(args[0], "-") { // --name NAME
			args = args[2:]
		}
		if len(args) == 0 {
			return errors.New("the URL is missing")
		}
		if err := x.fetch(words[0], arg(0)); err != nil {
			x.say(err.Error())
			return err
		}
		if words[0] == "kernel" {
			x.image = strings.Join(args[1:], " ")
		}
	case "boot":
		if x.image == "" {
			return errors.New("no kernel is loaded")
		}
		x.boots = true
	case "chain": // always --replace
		for len(args) > 1 && strings.HasPrefix(args[0], "-") {
			args = args[1:]
		}
		if len(args) == 0 {
			return errors.New("the URL is missing")
		}
		text, err := x.load(arg(0))
		if err != nil {
			x.say(err.Error())
			return err
		}
		x.image, x.next = "", text
	case "imgfree":
		x.image = ""
	case "goto":
		x.label = arg(0)
	case "sleep":
		seconds, err := strconv.Atoi(arg(0))
		if err != nil {
			return err
		}
		if !x.pause(time.Duration(seconds) * time.Second) {
			return errPower
		}
	case "exit", "sanboot": // on a BIOS machine, both continue with the next device: its disk
		x.ended = true
	case "dhcp", "ifopen": // the interface is already up
	default:
		return fmt.Errorf("there is no command %q", words[0])
	}
	return nil
}

// expand replaces ${name} with settings.
func (x *ipxe) expand(s string) string {
	for {
		begin := strings.Index(s, "${")
		if begin < 0 {
			return s
		}
		end := strings.IndexByte(s[begin:], '}')
		if end < 0 {
			return s
		}
		s = s[:begin] + x.vars[s[begin+2:begin+end]] + s[begin+end+1:]
	}
}
