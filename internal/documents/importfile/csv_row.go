package importfile

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ingotmetal/ingot/internal/documents/machinefile"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// Values of bmc_type that are not drivers of Ingot.
const (
	bmcNone = "none"
	bmcPlug = "plug"
)

// readCSV reads a hardware CSV of EKS Anywhere with one machine per row. If there are problems, it returns
// only problems: those of all rows. The Field of a problem is the column; no problem quotes the user or
// the password of a BMC. ignored holds the values that have no use with the bmc_type of their row.
func readCSV(file string, b []byte) (machines []Machine, ignored []Ignored, problems inventory.Problems) {
	t, ps := readTable(file, b)
	if t == nil {
		return nil, nil, ps
	}

	for _, r := range t.rows {
		m, unused, found := r.machine()
		machines, ignored, ps = append(machines, m), append(ignored, unused...), append(ps, found...)
	}
	if len(t.rows) == 0 && len(ps) == 0 {
		ps = inventory.Problems{{File: file, Line: 1, What: "holds no machine", Remedy: "write one row for each machine below the header"}}
	}

	machinefile.SortByLine(ps)
	if len(ps) > 0 {
		return nil, nil, ps
	}
	return machines, ignored, nil
}

// A rowReader collects the machine that a row describes, and the problems of the row.
type rowReader struct {
	row
	m       inventory.Machine
	nic     inventory.Interface
	ignored []Ignored
	ps      inventory.Problems
}

// machine returns the machine of a row, the values that are ignored, and all problems of the row.
func (r row) machine() (Machine, []Ignored, inventory.Problems) {
	rd := &rowReader{row: r}
	rd.readName()
	rd.readNetwork()
	rd.readLabels()
	rd.readDisk()
	rd.readBMC()
	rd.m.Image = rd.text(colImage)
	rd.m.Interfaces = []inventory.Interface{rd.nic}
	rd.m.Notes = map[string]string{
		"allowPXE": "true", "allowWorkflow": "true", // EKS Anywhere sets both for each row
	}

	m := inventory.Canonical(rd.m)
	found := inventory.Validate(m)
	r.taken.Machine(&found, "", m, r.place)
	if b := m.BMC; b != nil && b.Host != "" && b.Capabilities().NeedsHost {
		r.taken.Add(&found, "bmc.host", "BMC", b.Host, r.place("bmc.host"))
	}

	lineOf := func(field string) int { return r.cellLine(r.columnOf(field)) }
	return Machine{Machine: m, Place: Place{File: r.file, Line: r.line}, lineOf: lineOf}, rd.ignored, rd.judge(found)
}

// judge returns the problems of reading the row, followed by found, the problems of the row's machine. It
// leaves out a problem in found if that only follows from a problem of reading or from a missing column.
func (r *rowReader) judge(found inventory.Problems) inventory.Problems {
	unread := func(col string) bool {
		return r.has(col) || !slices.Contains(r.header, col) && slices.Contains(requiredColumns(), col)
	}

	out := slices.Clone(r.ps)
	for _, p := range found {
		col := r.columnOf(p.Field)
		several := col == colLabels || col == colNameservers // lists: a problem with one entry causes no problems with other entries
		dependent := (col == colNetmask || col == colGateway) && unread(colAddress)
		if dependent || !several && unread(col) {
			continue
		}
		p.File, p.Line, p.Field = r.file, r.cellLine(col), col
		out = append(out, p)
	}
	if slices.ContainsFunc(r.header, mayHoldPassword) {
		withoutValues(out)
	}
	return out
}

// mayHoldPassword reports whether a column is bmc_password or unknown. The unknown name may be a misspelt bmc_password.
func mayHoldPassword(column string) bool {
	return column == colBMCPassword || !slices.Contains(columnNames(), column)
}

// Parts of the text of a problem that quote the value of a cell.
var (
	quotedValue  = regexp.MustCompile(` ?"(?:[^"\\]|\\.)*"`)
	claimedValue = regexp.MustCompile(`^(machine name|host name|MAC|address|BMC) .+ (is given at .+ already)$`)
)

// withoutValues removes the values of cells from the texts of ps: if the columns of a row are shifted, any cell may hold
// the password. The operator finds the value by the line and column of the problem.
func withoutValues(ps inventory.Problems) {
	for i, p := range ps {
		text := claimedValue.ReplaceAllString(quotedValue.ReplaceAllString(p.What, ""), "the $1 $2")
		ps[i].What = strings.TrimSpace(text)
	}
}

// columnOf returns the column that sets a field of the machine. If no column does, it returns field itself.
func (r row) columnOf(field string) string {
	switch {
	case field == "diskSelector.byID" && !strings.HasPrefix(r.text(colDisk), byID),
		field == "diskSelector.serial" && r.text(colSerial) == "":
		return colDiskSelector
	case field == "labels["+labelFailureDomain+"]" && r.text(colFailureDomain) == "":
		return colLabels
	}

	for _, c := range columns {
		for _, f := range c.fields {
			if rest, ok := strings.CutPrefix(field, f); ok && (rest == "" || strings.ContainsAny(rest[:1], ".[")) {
				return c.name
			}
		}
	}
	return field
}

// cellLine returns the line of the row's cell in the column col, or of the row if there is no such column.
func (r row) cellLine(col string) int {
	if n := slices.Index(r.header, col); n >= 0 {
		return r.lines[n]
	}
	return r.line
}

// place returns FILE:LINE of the cell that sets a field of the machine.
func (r row) place(field string) string {
	return fmt.Sprintf("%s:%d", r.file, r.cellLine(r.columnOf(field)))
}

// text returns the row's value in the column col without space around it, or "" if there is no such column.
func (r row) text(col string) string { return strings.TrimSpace(r.verbatim(col)) }

// verbatim returns the row's value in the column col unchanged, or "" if there is no such column.
func (r row) verbatim(col string) string {
	n := slices.Index(r.header, col)
	if n < 0 {
		return ""
	}
	return r.cells[n]
}

// add adds a problem of the cell in the column col.
func (r *rowReader) add(col, remedy, format string, args ...any) {
	r.ps = append(r.ps, inventory.Problem{
		File: r.file, Line: r.cellLine(col), Field: col, What: fmt.Sprintf(format, args...), Remedy: remedy,
	})
}

// has reports whether the cell in the column col has a problem.
func (r *rowReader) has(col string) bool {
	return slices.ContainsFunc(r.ps, func(p inventory.Problem) bool { return p.Field == col })
}

// need returns the value of a required column. If the value is empty, it adds a problem.
func (r *rowReader) need(col, remedy string) string {
	v := r.text(col)
	if v == "" && slices.Contains(r.header, col) && !r.has(col) {
		r.add(col, remedy, "is empty")
	}
	return v
}

// readName reads the host name. The first label of the host name becomes the name of the machine. Before that, readName
// empties each cell of the row that is not UTF-8, and adds a problem for it.
func (r *rowReader) readName() {
	for n, cell := range r.cells {
		if !utf8.ValidString(cell) {
			r.add(r.header[n], "save the file as UTF-8", "the value is not UTF-8")
			r.cells[n] = ""
		}
	}

	r.nic.Hostname = r.need(colHostname, "name the machine")
	r.m.Name, _, _ = strings.Cut(r.nic.Hostname, ".")
}

// readNetwork reads the columns of the machine's interface.
func (r *rowReader) readNetwork() {
	r.nic.MAC = r.need(colMAC, "give the MAC address of the interface that boots from the network")
	r.nic.Address = r.address(colAddress, r.need(colAddress, "reserve an address"))
	r.nic.Netmask = r.need(colNetmask, "write it as 255.255.255.0")
	r.nic.Gateway = r.address(colGateway, r.need(colGateway, "give the router's address in the machine's subnet"))

	for _, s := range split(r.need(colNameservers, "give at least one name server; write several as 10.0.0.1|10.0.0.2")) {
		if s == "" {
			r.add(colNameservers, "remove the extra |", "there is an empty entry")
			continue
		}
		if a := r.address(colNameservers, s); a.IsValid() {
			r.nic.Nameservers = append(r.nic.Nameservers, a)
		}
	}

	r.nic.VLAN = r.number(colVLAN, 4094)
	r.nic.Arch = r.text(colArch)
	r.nic.UEFI = true // the value of EKS Anywhere for an empty column
	if v := r.text(colUEFI); v != "" {
		uefi, err := strconv.ParseBool(strings.ToLower(v))
		if err != nil {
			r.add(colUEFI, "write true or false, or leave it empty for true", "invalid value %q", clip(v))
		}
		r.nic.UEFI = uefi
	}
}

// address parses v, an IP address in the column col. It returns the zero Addr for "". For an invalid address it also
// returns the zero Addr, and adds a problem.
func (r *rowReader) address(col, v string) netip.Addr {
	a, err := netip.ParseAddr(v)
	if err != nil && v != "" {
		r.add(col, "write it as 10.0.0.11", "invalid IP address %q", clip(v))
	}
	return a
}

// number reads a number from 1 to most in the column col. It returns 0 for an empty value. For an invalid value it also
// returns 0, and adds a problem.
func (r *rowReader) number(col string, most int) int {
	v := r.text(col)
	n, err := strconv.Atoi(v)
	if v != "" && (err != nil || n < 1 || n > most) {
		r.add(col, fmt.Sprintf("use 1–%d, or leave it empty", most), "invalid number %q", clip(v))
		return 0
	}
	return n
}

// split returns the entries of v, which are separated by |; nil for "".
func split(v string) []string {
	if v == "" {
		return nil
	}
	out := strings.Split(v, "|")
	for n := range out {
		out[n] = strings.TrimSpace(out[n])
	}
	return out
}

// pairs calls the function use for each key=value in the column col. It adds a problem for an invalid or repeated entry.
func (r *rowReader) pairs(col, remedy string, use func(key, value string)) {
	seen := map[string]bool{}
	for _, entry := range split(r.text(col)) {
		k, v, ok := strings.Cut(entry, "=")
		k, v = strings.TrimSpace(k), strings.TrimSpace(v)
		switch {
		case !ok || k == "":
			r.add(col, remedy, "%q is not key=value", clip(entry))
		case seen[k]:
			r.add(col, "keep one of the two", "the key %q is given twice", clip(k))
		default:
			seen[k] = true
			use(k, v)
		}
	}
}

func (r *rowReader) readLabels() {
	labels := map[string]string{}
	r.pairs(colLabels, "write type=cp|rack=a1", func(k, v string) { labels[k] = v })

	if v := r.text(colFailureDomain); v != "" {
		if other, ok := labels[labelFailureDomain]; ok && other != v {
			r.add(colFailureDomain, "give the value in only one of the two columns",
				"the value becomes the label %s, which the column %s sets to another value",
				labelFailureDomain, colLabels)
		}
		labels[labelFailureDomain] = v
	}
	if len(labels) > 0 {
		r.m.Labels = labels
	}
}

// readDisk reads the device path that templates use, and the selector of the disk.
func (r *rowReader) readDisk() {
	var s inventory.DiskSelector
	device, serial := r.text(colDisk), r.text(colSerial)
	if device == "" && serial == "" && r.text(colDiskSelector) == "" {
		r.need(colDisk, "give a path such as /dev/sda, or choose the disk in the column serial or disk_selector")
	}
	if device != "" {
		r.m.Disks = []inventory.DeclaredDisk{{Device: device}}
	}
	if id, ok := strings.CutPrefix(device, byID); ok {
		s.ByID = id
	}
	s.Serial = serial

	texts := map[string]*string{"serial": &s.Serial, "wwn": &s.WWN, "byID": &s.ByID, "model": &s.Model}
	sizes := map[string]*inventory.Size{"minSize": &s.MinSize, "maxSize": &s.MaxSize}
	r.pairs(colDiskSelector, "write wwn=0x5000c500a1b2c3d4, or minSize=400GB|maxSize=1TB", func(k, v string) {
		text, isText := texts[k]
		size, isSize := sizes[k]
		var err error
		switch {
		case isText && *text != "" && *text != strings.TrimPrefix(v, byID):
			r.add(colDiskSelector, "give the value in only one column", "another column sets %s to another value", k)
		case isText:
			*text = v
		case isSize:
			if *size, err = inventory.ParseSize(v); err != nil {
				r.add(colDiskSelector, "write for example 500GB or 1.5TiB, or a number of bytes", "invalid size %q", clip(v))
			}
		default:
			r.add(colDiskSelector, strictyaml.Suggest(k, []string{"serial", "wwn", "byID", "model", "minSize", "maxSize"}),
				"unknown key %q", clip(k))
		}
	})
	if s != (inventory.DiskSelector{}) {
		r.m.DiskSelector = &s
	}
}

// readBMC reads the columns of the BMC. Its problems do not quote address, user or password.
func (r *rowReader) readBMC() {
	b := inventory.BMC{
		Driver: strings.ToLower(r.text(colBMCType)), User: r.text(colBMCUser),
		Password: inventory.NewSecret(r.verbatim(colBMCPassword)), Port: r.number(colBMCPort, 65535),
	}
	ip := r.text(colBMCAddress)
	if a, err := netip.ParseAddr(ip); err == nil {
		b.Host = a.String()
	} else if ip != "" {
		r.add(colBMCAddress, "write it as 10.0.9.11; the port belongs in the column bmc_port", "invalid IP address")
	}

	given := ip != "" || b.User != "" || !b.Password.IsZero()
	if b.Driver == "" && given {
		b.Driver = inventory.DriverIPMI
	}

	switch {
	case b.Driver == bmcNone && given:
		r.ignored = append(r.ignored, Ignored{
			Place:  Place{File: r.file, Line: r.line},
			Object: "machine " + clip(r.m.Name), Key: colBMCAddress, Why: "bmc_type is none: an operator switches the power",
		})
	case b.Driver == "", b.Driver == bmcNone, b.Driver == inventory.DriverManual && !given:
		if b.Port != 0 {
			r.add(colBMCPort, "leave the column empty", "a BMC port is given, but the machine has no BMC")
		}
	case b.Driver == inventory.DriverRPC:
		r.add(colBMCType, "write manual, and give the machine bmc {driver: rpc, host: HOST, consumerURL: URL} in a file for ingot machine push",
			"the driver rpc needs the URL of a service, for which there is no column")
	case b.Driver == bmcPlug:
		r.add(colBMCType, "write manual, and give the machine a power command later: bmc {driver: exec, command: NAME} "+
			"in a file for ingot machine push", "%s needs a power command, for which there is no column", b.Driver)
	case !inventory.KnownDriver(b.Driver), b.Driver == inventory.DriverExec:
		r.add(colBMCType, "use one of: amt, ipmi, manual, none, wol; empty: ipmi", "unknown type %q", clip(b.Driver))
	default:
		if b.Capabilities().NeedsHost {
			r.needLogin(ip, b)
		}
		r.m.BMC = &b
	}
}

// needLogin adds a problem for each of these that is missing: the address, the user and the password of the BMC.
func (r *rowReader) needLogin(ip string, b inventory.BMC) {
	for _, x := range []struct {
		col   string
		empty bool
	}{{colBMCAddress, ip == ""}, {colBMCUser, b.User == ""}, {colBMCPassword, b.Password.IsZero()}} {
		if x.empty {
			r.add(x.col, "give all of bmc_ip, bmc_username and bmc_password, or none", "is empty")
		}
	}
}
