package importfile

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

const eksaHeader = "hostname,bmc_ip,bmc_username,bmc_password,mac,ip_address,netmask,gateway,nameservers,labels,disk"

// goodRow is a row of eksaHeader.
const goodRow = "n1,10.0.9.1,root,hush-hush,02:00:00:00:00:01,10.0.0.11,255.255.255.0,10.0.0.1,10.0.0.1,type=cp,/dev/sda"

// texts returns problems as an operator sees them.
func texts(ps inventory.Problems) []string {
	var out []string
	for _, p := range ps {
		out = append(out, p.String())
	}
	return out
}

func TestReadCSV(t *testing.T) {
	b, err := os.ReadFile("testdata/hardware.csv")
	require.NoError(t, err)
	require.True(t, isCSV(b))

	ms, ignored, ps := readCSV("hardware.csv", b)
	require.Empty(t, texts(ps))
	require.Empty(t, ignored)
	require.Len(t, ms, 3)

	notes := map[string]string{"allowPXE": "true", "allowWorkflow": "true"}
	a := netip.MustParseAddr
	require.Equal(t, inventory.Machine{
		Name: "eksa-cp01", Labels: map[string]string{"type": "cp"},
		Interfaces: []inventory.Interface{{
			MAC: "cc:48:3a:00:00:01", Address: a("10.10.50.2"), Netmask: "255.255.254.0", Gateway: a("10.10.50.1"),
			Hostname: "eksa-cp01", Nameservers: []netip.Addr{a("8.8.8.8"), a("8.8.4.4")}, UEFI: true,
		}},
		Disks: []inventory.DeclaredDisk{{Device: "/dev/sda"}}, Notes: notes,
		BMC: &inventory.BMC{Driver: inventory.DriverIPMI, Host: "10.10.44.1", User: "root", Password: inventory.NewSecret("PrZ8W93i")},
	}, ms[0].Machine)

	require.Equal(t, "cc:48:3a:00:00:02", ms[1].Interfaces[0].MAC)
	require.Equal(t, 50, ms[1].Interfaces[0].VLAN)
	require.Equal(t, map[string]string{"type": "cp", "rack": "a1"}, ms[1].Labels)
	require.Nil(t, ms[1].DiskSelector, "a path does not identify a disk")
	require.Equal(t, Place{"hardware.csv", 3}, ms[1].Place)
	require.Equal(t, 3, ms[1].lineOf("interfaces[0].vlan"))

	third := ms[2]
	require.Equal(t, "eksa-wk01", third.Name)
	require.Equal(t, "eksa-wk01.example.com", third.Interfaces[0].Hostname)
	require.Equal(t, `a "b", c`, third.BMC.Password.Reveal())
	require.Equal(t, map[string]string{"type": "worker", "rack": "a2"}, third.Labels)
	require.Equal(t, &inventory.DiskSelector{ByID: "nvme-eui.0025388b71b0b36e"}, third.DiskSelector)
	require.Equal(t, 5, third.Line)
}

// TestReadCSVForms: the same rows as other programs write them.
func TestReadCSVForms(t *testing.T) {
	want, _, ps := readCSV("f", []byte(eksaHeader+"\n"+goodRow+"\n"))
	require.Empty(t, texts(ps))
	require.Len(t, want, 1)

	quoted := func(line string) string { return `"` + strings.ReplaceAll(line, ",", `","`) + `"` }
	for name, text := range map[string]string{
		"BOM":             "\ufeff" + eksaHeader + "\n" + goodRow + "\n",
		"CRLF":            eksaHeader + "\r\n" + goodRow + "\r\n",
		"CR":              eksaHeader + "\r" + goodRow + "\r",
		"no line end":     eksaHeader + "\n" + goodRow,
		"quotes":          quoted(eksaHeader) + "\n" + quoted(goodRow) + "\n",
		"quotes and BOM":  "\ufeff" + quoted(eksaHeader) + "\r\n" + quoted(goodRow) + "\r\n",
		"blank lines":     eksaHeader + "\n" + goodRow + "\n\n   \n,,,,,,,,,,\n",
		"capitals":        strings.ToUpper(eksaHeader) + "\n" + goodRow + "\n",
		"spaces":          strings.ReplaceAll(eksaHeader, ",", " , ") + "\n" + strings.Replace(goodRow, "n1,", " n1 ,", 1) + "\n",
		"trailing commas": eksaHeader + ",,\n" + goodRow + ",,\n",
		"more commas":     eksaHeader + "\n" + goodRow + ",,,\n",
		"unused columns":  eksaHeader + ",vlan_id,arch,uefi,bmc_type,bmc_port,failure_domain,serial,disk_selector,image\n" + goodRow + ",,,,,,,,,\n",
		"written out":     eksaHeader + ",vlan_id,uefi,bmc_type\n" + goodRow + ",,TRUE,IPMI\n",
	} {
		require.True(t, isCSV([]byte(text)), name)
		got, ignored, ps := readCSV("f", []byte(text))
		require.Empty(t, texts(ps), name)
		require.Empty(t, ignored, name)
		require.Len(t, got, 1, name)
		require.Equal(t, want[0].Machine, got[0].Machine, name)
	}
}

func TestReadCSVColumnsOfIngot(t *testing.T) {
	const header = "image,hostname,mac,ip_address,netmask,gateway,nameservers,labels,disk,arch,uefi,bmc_type,bmc_port," +
		"bmc_ip,bmc_username,bmc_password,failure_domain,serial,disk_selector\n"
	const place = ",255.255.255.0,10.0.0.1,10.0.0.1,"
	ms, ignored, ps := readCSV("f", []byte(header+
		"debian-12,a,02:00:00:00:00:01,10.0.0.11"+place+",/dev/sda,arm64,false,amt,16993,10.0.9.1,admin,hush,rack-1,S4E,\n"+
		",b,02:00:00:00:00:02,10.0.0.12"+place+"failure-domain=x,,,,,,,,,x,,wwn=0x5000c500a1b2c3d4|minSize=400GB\n"+
		",c,02:00:00:00:00:03,10.0.0.13"+place+",/dev/sda,,,wol,7,,,,,,\n"+
		",d,02:00:00:00:00:04,10.0.0.14"+place+",/dev/sda,,,manual,,10.0.9.4,admin,hush,,,\n"+
		",e,02:00:00:00:00:05,10.0.0.15"+place+",/dev/sda,,,manual,,,,,,,\n"+
		",f,02:00:00:00:00:06,10.0.0.16"+place+",/dev/sda,,,none,,10.0.9.6,admin,hush,,,\n"))
	require.Empty(t, texts(ps))
	require.Len(t, ms, 6)

	require.Equal(t, "debian-12", ms[0].Image)
	require.Equal(t, "aarch64", ms[0].Interfaces[0].Arch)
	require.False(t, ms[0].Interfaces[0].UEFI)
	require.Equal(t, 16993, ms[0].BMC.Port)
	require.Equal(t, inventory.DriverAMT, ms[0].BMC.Driver)
	require.Equal(t, map[string]string{"failure-domain": "rack-1"}, ms[0].Labels)
	require.Equal(t, &inventory.DiskSelector{Serial: "S4E"}, ms[0].DiskSelector)

	require.Empty(t, ms[1].Disks)
	require.Equal(t, &inventory.DiskSelector{WWN: "0x5000c500a1b2c3d4", MinSize: 4e11}, ms[1].DiskSelector)
	require.Equal(t, map[string]string{"failure-domain": "x"}, ms[1].Labels)
	require.Nil(t, ms[1].BMC)
	require.Equal(t, &inventory.BMC{Driver: inventory.DriverWOL, Port: 7}, ms[2].BMC)
	require.Equal(t, "hush", ms[3].BMC.Password.Reveal())
	require.True(t, ms[3].BMC.Manual())
	require.Nil(t, ms[4].BMC)
	require.Nil(t, ms[5].BMC)
	require.Equal(t, []Ignored{{
		Place: Place{"f", 7}, Object: "machine f", Key: "bmc_ip", Why: "bmc_type is none: an operator switches the power",
	}}, ignored)
}

func TestReadCSVHeader(t *testing.T) {
	for text, want := range map[string][]string{
		"":                {"f:1: there is no header (begin with: hostname,mac,ip_address,netmask,gateway,nameservers,labels,disk)"},
		eksaHeader + "\n": {"f:1: holds no machine (write one row for each machine below the header)"},
		"hostname;mac;ip_address\nn1;x;y\n": {
			"f:1: the columns of the header are not separated by commas (save the file with commas between the columns)",
		},
		"\n\"hostname,mac\nip_address": {
			`f:3: invalid CSV at byte 11: extraneous or missing " in quoted-field (write a quote inside a quoted value as "", and end each quoted value with a quote)`,
		},
		"hostnam,mac,ip_address,netmask,gateway,nameservers,labels,disk,mac,speed_of_light_in_vacuum\nn1,02:00:00:00:00:01,10.0.0.11,255.255.255.0,10.0.0.1,10.0.0.1,,/dev/sda,x,y\n": {
			`f:1: hostnam: unknown column (did you mean "hostname"?)`,
			"f:1: mac: columns 2 and 9 have the same name (keep one of the two)",
			"f:1: speed_of_light_in_vacuum: unknown column (known keys: arch, bmc_ip, bmc_password, bmc_port, bmc_type, " +
				"bmc_username, disk, disk_selector, failure_domain, gateway, hostname, image, ip_address, labels, mac, " +
				"nameservers, netmask, serial, uefi, vlan_id)",
			"f:1: hostname: the column is missing (add the column, in any position)",
		},
	} {
		ms, _, ps := readCSV("f", []byte(text))
		require.Empty(t, ms)
		require.Equal(t, want, texts(ps), text)
	}
}

// TestReadCSVReportsEverything: each row with what is wrong with it, and no password.
func TestReadCSVReportsEverything(t *testing.T) {
	const login = ",root,hush-hush,"
	const net = ",255.255.255.0,10.0.0.1,10.0.0.1,"
	const rest = ",,,,,,,,,\n"
	text := eksaHeader + ",vlan_id,arch,uefi,bmc_type,bmc_port,failure_domain,serial,disk_selector,image\n" +
		goodRow + rest + // line 2
		goodRow + rest + // a second time
		"n4,10.0.9.4" + login + "02-00-00-00-00-0g,10.0.0.14,255.0.255.0,10.0.0.1,10.0.0.1,type=cp,/dev/sda" + rest +
		"n5,10.0.9.5,,hush-hush,02:00:00:00:00:05,10.0.0.300" + net + "type=cp,/dev/sda,4095,riscv,maybe,,0,,,,\n" +
		"n6,10.0.9.6" + login + "02:00:00:00:00:06,10.0.0.16,255.255.255.0,10.0.1.1,10.0.0.1||ns.example.com," +
		"type=cp|rack|type=x|a b=c,sda" + rest +
		"n7,10.0.9.7" + login + "02:00:00:00:00:07,10.0.0.17" + net + "failure-domain=b,/dev/sda,,,,redfish,,a,S1," +
		"serial=S2|colour=red|minSize=5parsec,../x\n" +
		"n8,10.0.9.8" + login + "02:00:00:00:00:08,10.0.0.18,255.255.255.0,,10.0.0.1,,,,,,rpc,,,,,\n" +
		"n9,10.0.9.9" + login + "02:00:00:00:00:09\n" +
		"n10,bmc.example.com,root,hush-hush-hush-hush-hush,02:00:00:00:00:10,10.0.0.255" + net + ",/dev/sda" + rest +
		"n11,,,,02:00:00:00:00:11,10.0.0.21" + net + ",/dev/sda,,,,,623,,,,\n" +
		"n\xfcll,,,,02:00:00:00:00:12,10.0.0.22" + net + ",/dev/sda,,,,telnet,,a/b,,,\n" +
		"n\"13" + login + "\n" +
		"N_14,10.0.9.1" + login + "02:00:00:00:00:14,10.0.0.24" + net + ",/dev/sda,,,,,,,,wwn=a b,\n" +
		goodRow + rest[:len(rest)-1] + ",x\n"

	ms, _, ps := readCSV("f", []byte(text))
	require.Empty(t, ms, "nothing is imported unless all is valid")
	for _, p := range ps {
		require.NotContains(t, p.String(), "hush")
		require.NotContains(t, p.String(), "root")
	}
	require.Equal(t, []string{
		"f:3: hostname: the machine name is given at f:2 already (change one of the two)",
		"f:3: mac: the MAC is given at f:2 already (change one of the two)",
		"f:3: ip_address: the address is given at f:2 already (change one of the two)",
		"f:3: bmc_ip: the BMC is given at f:2 already (change one of the two)",
		"f:4: mac: invalid MAC address (write it as aa:bb:cc:dd:ee:ff)",
		"f:4: netmask: invalid netmask (write it as 255.255.255.0)",
		"f:5: ip_address: invalid IP address (write it as 10.0.0.11)",
		"f:5: vlan_id: invalid number (use 1–4094, or leave it empty)",
		"f:5: uefi: invalid value (write true or false, or leave it empty for true)",
		"f:5: bmc_port: invalid number (use 1–65535, or leave it empty)",
		"f:5: bmc_username: is empty (give all of bmc_ip, bmc_username and bmc_password, or none)",
		"f:5: arch: unknown architecture (use x86_64 or aarch64)",
		"f:6: nameservers: there is an empty entry (remove the extra |)",
		"f:6: nameservers: invalid IP address (write it as 10.0.0.11)",
		"f:6: labels: is not key=value (write type=cp|rack=a1)",
		"f:6: labels: the key is given twice (keep one of the two)",
		"f:6: disk: invalid device path (give a path such as /dev/sda)",
		"f:6: gateway: 10.0.1.1 lies outside 10.0.0.0/24 (give a router in the same subnet, or leave it out; if the machine reaches " +
			"this router directly, set onLink: true or the netmask 255.255.255.255)",
		"f:6: labels: invalid label name (use name or domain/name, of letters, digits, - _ and .)",
		"f:7: failure_domain: the value becomes the label failure-domain, which the column labels sets to another value (give the value in only one of the two columns)",
		"f:7: disk_selector: another column sets serial to another value (give the value in only one column)",
		"f:7: disk_selector: unknown key (known keys: byID, maxSize, minSize, model, serial, wwn)",
		"f:7: disk_selector: invalid size (write for example 500GB or 1.5TiB, or a number of bytes)",
		"f:7: image: invalid name (use up to 128 letters, digits, . _ + and -, beginning with a letter or digit)",
		"f:8: gateway: is empty (give the router's address in the machine's subnet)",
		"f:8: disk: is empty (give a path such as /dev/sda, or choose the disk in the column serial or disk_selector)",
		"f:8: bmc_type: the driver rpc needs the URL of a service, for which there is no column (write manual, and give the machine bmc {driver: rpc, host: HOST, consumerURL: URL} in a file for ingot machine push)",
		"f:9: the row has 5 values, but the header has 20 columns (leave an unused value empty, but keep its comma; put a value with a comma in quotes)",
		"f:10: bmc_ip: invalid IP address (write it as 10.0.9.11; the port belongs in the column bmc_port)",
		"f:10: bmc_password: the driver ipmi allows passwords of up to 20 bytes (use a shorter one)",
		"f:10: ip_address: 10.0.0.255 is the network or broadcast address of 10.0.0.0/24 (reserve another address of that subnet)",
		"f:11: bmc_port: a BMC port is given, but the machine has no BMC (leave the column empty)",
		"f:12: hostname: the value is not UTF-8 (save the file as UTF-8)",
		"f:12: bmc_type: unknown type (use one of: amt, ipmi, manual, none, wol; empty: ipmi)",
		"f:12: failure_domain: invalid label value (use up to 63 letters, digits, - _ and .)",
		"f:13: invalid CSV at byte 2: bare \" in non-quoted-field (put the whole value in quotes, with no space before the first quote, and write a quote inside the value as \"\")",
		"f:14: hostname: invalid host name (use labels of a–z, 0–9 and -)",
		"f:14: hostname: invalid machine name (use up to 63 of a–z, 0–9 and -, beginning and ending with a letter or digit)",
		"f:14: bmc_ip: the BMC is given at f:2 already (change one of the two)",
		"f:15: the row has 21 values, but the header has 20 columns (leave an unused value empty, but keep its comma; put a value with a comma in quotes)",
	}, texts(ps))
}

// TestS25ShiftedColumnsRepeatNoPassword: whichever column the password is in, no problem repeats it, though the name of
// its own column is misspelt.
func TestS25ShiftedColumnsRepeatNoPassword(t *testing.T) {
	const header = eksaHeader + ",vlan_id,arch,uefi,bmc_type,bmc_port,failure_domain,serial,disk_selector,image"
	const row = goodRow + ",7,x86_64,true,ipmi,623,rack-1,S1,minSize=1GB,debian-12"
	for _, password := range []string{
		"hush-hush", "Hush hush!", `hush""hush`, "hush=hush|hush=hush", "918273645546372", "/hush/../hush", "hush" + strings.Repeat("x", 70),
	} {
		cells := strings.Split(strings.Replace(row, "hush-hush", password, 1), ",")
		for shift := range cells {
			shifted := append(slices.Clone(cells[shift:]), cells[:shift]...)
			replaced := strings.Split(row, ",")
			replaced[shift] = password
			for n, cells := range [][]string{shifted, replaced, shifted} {
				line, header := `"`+strings.Join(cells, `","`)+`"`+"\n", header
				if n == 2 {
					header = strings.Replace(header, "bmc_password", "bmc_pass", 1)
				}
				_, _, ps := readCSV("f", []byte(header+"\n"+line+line))
				require.NotEmpty(t, ps, "the row is given twice")
				for _, p := range ps {
					require.NotContains(t, strings.ToLower(p.String()), "hush", columns[shift].name)
					require.NotContains(t, p.String(), "918273645546372", columns[shift].name)
				}
			}
		}
	}
}

func TestReadCSVWithoutColumns(t *testing.T) {
	_, _, ps := readCSV("f", []byte("hostname,labels,disk,gateway,netmask\nn1,x=y,/dev/sda,10.0.0.1,255.255.255.0\nn2,x,,10.0.0.1,\n"))
	require.Equal(t, []string{
		"f:1: mac: the column is missing (add the column, in any position)",
		"f:1: ip_address: the column is missing (add the column, in any position)",
		"f:1: nameservers: the column is missing (add the column, in any position)",
		"f:3: netmask: is empty (write it as 255.255.255.0)",
		`f:3: labels: "x" is not key=value (write type=cp|rack=a1)`,
		"f:3: disk: is empty (give a path such as /dev/sda, or choose the disk in the column serial or disk_selector)",
	}, texts(ps), "no row repeats that the column is missing")
}

func TestIsCSV(t *testing.T) {
	for _, text := range []string{
		"hostname,mac,ip_address", "\ufeff\"hostname\", mac ,ip_address\r\n", "Hostname;MAC;Disk", "\n\nmac\tlabels\tdisk\n",
	} {
		require.True(t, isCSV([]byte(text)), text)
	}
	for _, text := range []string{
		"", "hostname", "name: a\ninterfaces: [{mac: x}]", "# hostname, mac, disk\n", "a,b,c\n", "hostname: mac\n",
		"{\"hostname\": 1, \"mac\": 2, \"disk\": 3}",
	} {
		require.False(t, isCSV([]byte(text)), text)
	}
}

// FuzzCSV: no input makes the reader panic, and what it reads without a problem is valid and
// repeats no identity.
func FuzzCSV(f *testing.F) {
	b, err := os.ReadFile("testdata/hardware.csv")
	require.NoError(f, err)
	f.Add(b)
	f.Add([]byte("\ufeff" + eksaHeader + ",serial,disk_selector,bmc_type\r\n" + goodRow + ",S1,minSize=1GB,none\r\n"))
	f.Add([]byte(eksaHeader + "\n" + goodRow + "\n" + goodRow + "\n\"\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		isCSV(b)
		ms, _, ps := readCSV("f", b)
		if len(ps) > 0 {
			require.Empty(t, ms)
			return
		}
		require.NotEmpty(t, ms)
		seen := map[string]bool{}
		for _, m := range ms {
			require.Empty(t, inventory.Validate(m.Machine))
			require.Positive(t, m.lineOf("interfaces[0].mac"))
			for _, id := range []string{m.Name, m.Interfaces[0].MAC, m.Interfaces[0].Address.String()} {
				require.False(t, seen[id], id)
				seen[id] = true
			}
		}
	})
}
