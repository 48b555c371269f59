package importfile

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/internal/documents/machinefile"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// Columns of a hardware CSV.
const (
	colHostname      = "hostname"
	colBMCAddress    = "bmc_ip"
	colBMCUser       = "bmc_username"
	colBMCPassword   = "bmc_password"
	colMAC           = "mac"
	colAddress       = "ip_address"
	colNetmask       = "netmask"
	colGateway       = "gateway"
	colNameservers   = "nameservers"
	colLabels        = "labels"
	colDisk          = "disk"
	colVLAN          = "vlan_id"
	colArch          = "arch"
	colUEFI          = "uefi"
	colBMCType       = "bmc_type"
	colBMCPort       = "bmc_port"
	colFailureDomain = "failure_domain"
	colSerial        = "serial"
	colDiskSelector  = "disk_selector"
	colImage         = "image"
)

// A column of a hardware CSV sets each field of a machine whose path is in fields, and each field below such a path.
type column struct {
	name     string
	required bool
	fields   []string
}

// columns holds the columns of EKS Anywhere and, from colArch on, those that Ingot adds. The first column that matches
// a field sets it: therefore labels[failure-domain] comes before labels.
var columns = []column{
	{colHostname, true, []string{"name", "interfaces[0].hostname"}},
	{colBMCAddress, false, []string{"bmc.host"}},
	{colBMCUser, false, []string{"bmc.user"}},
	{colBMCPassword, false, []string{"bmc.password"}},
	{colMAC, true, []string{"interfaces[0].mac"}},
	{colAddress, true, []string{"interfaces[0].address"}},
	{colNetmask, true, []string{"interfaces[0].netmask"}},
	{colGateway, true, []string{"interfaces[0].gateway"}},
	{colNameservers, true, []string{"interfaces[0].nameservers"}},
	{colFailureDomain, false, []string{"labels[" + labelFailureDomain + "]"}},
	{colLabels, true, []string{"labels"}},
	{colDisk, true, []string{"disks", "diskSelector.byID"}},
	{colVLAN, false, []string{"interfaces[0].vlan"}},
	{colArch, false, []string{"interfaces[0].arch"}},
	{colUEFI, false, []string{"interfaces[0].uefi"}},
	{colBMCPort, false, []string{"bmc.port"}},
	{colBMCType, false, []string{"bmc"}},
	{colSerial, false, []string{"diskSelector.serial"}},
	{colDiskSelector, false, []string{"diskSelector"}},
	{colImage, false, []string{"image"}},
}

// labelFailureDomain is the label whose value is in the column failure_domain.
const labelFailureDomain = "failure-domain"

// columnNames lists the names of all columns.
func columnNames() []string {
	var out []string
	for _, c := range columns {
		out = append(out, c.name)
	}
	return out
}

// requiredColumns lists the names of the columns that a header must have.
func requiredColumns() []string {
	var out []string
	for _, c := range columns {
		if c.required {
			out = append(out, c.name)
		}
	}
	return out
}

// isCSV reports whether the first line of b is the header of an EKS Anywhere hardware CSV: it has at
// least three known columns, separated by commas, semicolons or tabs.
func isCSV(b []byte) bool {
	line, _, _ := bytes.Cut(bytes.TrimSpace(stripMark(b)), []byte("\n"))
	known := 0
	for _, name := range strings.FieldsFunc(string(line), func(r rune) bool { return strings.ContainsRune(",;\t", r) }) {
		if slices.Contains(columnNames(), columnName(strings.Trim(strings.TrimSpace(name), `"`))) {
			known++
		}
	}
	return known >= 3
}

// stripMark returns b without a byte order mark. If b has no LF, stripMark replaces each CR by LF, because encoding/csv
// does not split at CR.
func stripMark(b []byte) []byte {
	b = bytes.TrimPrefix(b, []byte("\ufeff"))
	if !bytes.ContainsRune(b, '\n') {
		b = bytes.ReplaceAll(b, []byte("\r"), []byte("\n"))
	}
	return b
}

// columnName returns a cell of the header as a name in columns: trimmed, in lower case.
func columnName(s string) string { return strings.ToLower(strings.TrimSpace(s)) }

// A table is the content of a hardware CSV.
type table struct {
	file   string
	header []string
	rows   []row
	taken  machinefile.Claims
}

// A row is one record of a table.
type row struct {
	*table
	line  int // the line where the row starts
	cells []string
	lines []int // the line of each cell
}

// readTable reads the header and the rows. It returns a nil table if there is no header, or if the header cannot be read.
func readTable(file string, b []byte) (*table, inventory.Problems) {
	cr := csv.NewReader(bytes.NewReader(stripMark(b)))
	cr.FieldsPerRecord = -1

	var ps inventory.Problems
	t := &table{file: file, taken: machinefile.Claims{}}
	for {
		cells, err := cr.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			ps = append(ps, syntaxProblem(file, err))
			if t.header == nil {
				return nil, ps
			}
			continue
		}

		r := row{table: t, cells: cells, lines: make([]int, len(cells))}
		for n := range cells {
			r.lines[n], _ = cr.FieldPos(n)
		}
		r.line = r.lines[0]
		switch {
		case !slices.ContainsFunc(cells, func(s string) bool { return strings.TrimSpace(s) != "" }): // blank
		case t.header == nil:
			if ps = append(ps, t.setHeader(r)...); t.header == nil {
				return nil, ps
			}
		default:
			if p := t.add(r); p.What != "" {
				ps = append(ps, p)
			}
		}
	}

	if t.header == nil {
		return nil, append(ps, inventory.Problem{File: file, Line: 1, What: "there is no header", Remedy: headerRemedy})
	}
	return t, ps
}

// headerRemedy shows the shortest valid header.
const headerRemedy = "begin with: hostname,mac,ip_address,netmask,gateway,nameservers,labels,disk"

// syntaxProblem converts an error of encoding/csv. The text of such an error quotes nothing of the row.
func syntaxProblem(file string, err error) inventory.Problem {
	p := inventory.Problem{File: file, What: err.Error()}
	if e, ok := errors.AsType[*csv.ParseError](err); ok {
		p.Line, p.What = e.Line, fmt.Sprintf("invalid CSV at byte %d: %v", e.Column, e.Err)
	}
	switch {
	case errors.Is(err, csv.ErrBareQuote):
		p.Remedy = `put the whole value in quotes, with no space before the first quote, and write a quote inside the value as ""`
	case errors.Is(err, csv.ErrQuote):
		p.Remedy = `write a quote inside a quoted value as "", and end each quoted value with a quote`
	}
	return p
}

// setHeader sets t.header from r, and returns the problems of the header. t.header stays nil if the header
// is one cell, because then no row can be read.
func (t *table) setHeader(r row) (ps inventory.Problems) {
	add := func(line int, field, remedy, format string, args ...any) {
		ps = append(ps, inventory.Problem{
			File: t.file, Line: line, Field: field, What: fmt.Sprintf(format, args...), Remedy: remedy,
		})
	}
	if len(r.cells) == 1 {
		add(r.line, "", "save the file with commas between the columns", "the columns of the header are not separated by commas")
		return ps
	}

	known := columnNames()
	first := map[string]int{}
	for n, cell := range r.cells {
		name := columnName(cell)
		t.header = append(t.header, name)
		other, double := first[name]
		switch {
		case name == "": // table.add reports a value in a column without a name
		case double: // the first of the two columns counts
			add(r.lines[n], clip(name), "keep one of the two", "columns %d and %d have the same name", other+1, n+1)
		case !slices.Contains(known, name):
			add(r.lines[n], clip(name), strictyaml.Suggest(name, known), "unknown column")
		}
		if !double {
			first[name] = n
		}
	}

	for _, name := range requiredColumns() {
		if _, ok := first[name]; !ok {
			add(r.line, name, "add the column, in any position", "the column is missing")
		}
	}
	return ps
}

// add adds a row to the table, and returns the zero Problem. If the values do not fit the header, add returns a problem
// and drops the row: a value may then be in the wrong column, and a problem that quotes this value could show a password.
func (t *table) add(r row) (p inventory.Problem) {
	p = inventory.Problem{File: t.file, Line: r.line}
	for len(r.cells) > len(t.header) && strings.TrimSpace(r.cells[len(r.cells)-1]) == "" {
		r.cells = r.cells[:len(r.cells)-1]
	}
	if len(r.cells) != len(t.header) {
		p.What = fmt.Sprintf("the row has %d values, but the header has %d columns", len(r.cells), len(t.header))
		p.Remedy = "leave an unused value empty, but keep its comma; put a value with a comma in quotes"
		return p
	}

	for n, cell := range r.cells {
		if t.header[n] == "" && strings.TrimSpace(cell) != "" {
			p.Line, p.What, p.Remedy = r.lines[n], fmt.Sprintf("column %d has a value, but no name", n+1), "name the column in the header"
			return p
		}
	}

	t.rows = append(t.rows, r)
	return inventory.Problem{}
}
