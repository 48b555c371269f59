package sbat

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/text/plaintext"
	"github.com/ingotmetal/ingot/lab/fakeloader"
)

const (
	format = fakeloader.Format
	shim   = format + "shim,4,UEFI shim,shim,1,https://github.com/rhboot/shim\n" +
		"shim.debian,1,Debian,shim,15.8,https://tracker.debian.org/pkg/shim\n"
	grub = format + "grub,4,Free Software Foundation,grub,2.06,https://www.gnu.org/software/grub/\n" +
		"grub.debian,4,Debian,grub2,2.06-13,https://tracker.debian.org/pkg/grub2\n"
)

// TestS36ProgramsSayTheirGenerations: what a program's section .sbat and its table of signatures say.
func TestS36ProgramsSayTheirGenerations(t *testing.T) {
	p, err := Read(bytes.NewReader(fakeloader.Program(shim, true)))
	require.NoError(t, err)
	require.Equal(t, Program{[]Component{{"shim", 4, "1"}, {"shim.debian", 1, "15.8"}}, true}, p)
	require.Equal(t, "shim 4, shim.debian 1 (15.8), signed", p.String())

	p, err = Read(bytes.NewReader(fakeloader.Program(strings.ReplaceAll("\ufeff"+grub, "\n", "\r\n\r\n"), false)))
	require.NoError(t, err)
	require.Equal(t, "grub 4, grub.debian 4 (2.06-13), not signed", p.String())

	p, err = Read(bytes.NewReader(fakeloader.Program("", false)))
	require.NoError(t, err)
	require.Equal(t, "no SBAT generations, not signed", p.String())

	// An optional header that ends before the table of signatures belongs to a program without one.
	b := fakeloader.Program("", true)
	binary.LittleEndian.PutUint32(b[0x58+108:], 4)
	p, err = Read(bytes.NewReader(b))
	require.NoError(t, err)
	require.False(t, p.Signed)
}

// TestS36MalformedPrograms: each mistake is named.
func TestS36MalformedPrograms(t *testing.T) {
	_, err := Read(strings.NewReader("undionly"))
	require.ErrorIs(t, err, ErrNotUEFI)
	_, err = Read(strings.NewReader(""))
	require.ErrorIs(t, err, ErrNotUEFI)

	good := fakeloader.Program(shim, true)
	_, err = Read(bytes.NewReader(good[:0x100]))
	require.ErrorContains(t, err, "reading the headers of a UEFI program")
	_, err = Read(bytes.NewReader(good[:0x210]))
	require.ErrorContains(t, err, "reading section .sbat")
	bad := bytes.Replace(good, []byte("PE\x00\x00"), []byte("NE\x00\x00"), 1)
	_, err = Read(bytes.NewReader(bad))
	require.ErrorContains(t, err, "no PE signature")
	for text, want := range map[string]string{
		"\x00":                                  `does not begin with "sbat,1,"`,
		"shim,4,UEFI shim,shim,1,u\n":           `does not begin with "sbat,1,"`,
		"sbat,2,SBAT Version,sbat,1,u\n":        `does not begin with "sbat,1,"`,
		format + "shim,4,UEFI shim\n":           "line 2 of section .sbat: 3 fields instead of 6",
		format + "shim,0,UEFI shim,shim,1,u\n":  `invalid generation "0" of shim`,
		format + "shim,-1,UEFI shim,shim,1,u\n": `invalid generation "-1"`,
		format + "shim,4294967300,U,shim,1,u\n": `invalid generation "4294967300"`,
		format + ",4,UEFI shim,shim,1,u\n":      `invalid component name ""`,
		format + "sh\x1bim,4,U,shim,1,u\n":      `invalid component name "sh\x1bim"`,
		format + "shim,4,U,shim,1\x1b[2J,u\n":   `invalid version "1\x1b[2J" of shim`,
		strings.Repeat("x", maxSection+1):       "more than 65536",
	} {
		_, err := Read(bytes.NewReader(fakeloader.Program(text, true)))
		require.ErrorContains(t, err, want, "%.60q", text)
	}
}

// TestS36Minimum: components are compared like in shim, and an old loader without generations is below each minimum.
func TestS36Minimum(t *testing.T) {
	read := func(text string) Program {
		p, err := Read(bytes.NewReader(fakeloader.Program(text, true)))
		require.NoError(t, err)
		return p
	}
	known := Known()
	require.Empty(t, known.Below("shimx64.efi", read(shim)))
	below := known.Below("grubx64.efi", read(grub))
	require.Equal(t, []Shortfall{{"grub", 4, 5}}, below)
	require.Equal(t, "grub 4 is below the minimum 5", below[0].String())
	require.Contains(t, Vulnerabilities("grub", 4), "CVE-2024-45774")
	require.Contains(t, Vulnerabilities("shim", 3), "CVE-2023-40547")
	require.Empty(t, Vulnerabilities("grub", 5))
	require.Empty(t, Vulnerabilities("ipxe", 1))

	below = known.Below("shimx64.efi", read(""))
	require.Equal(t, []Shortfall{{"shim", 0, 4}}, below)
	require.Equal(t, "the component shim is missing; its minimum generation is 4", below[0].String())
	require.Empty(t, known.Below("snponly.efi", read("")))
	require.Equal(t, []Shortfall{{"shim", 0, 4}}, known.Below("snponly-shim.efi", read("")))
	require.Equal(t, []Shortfall{{"ipxe", 0, 1}}, Minimum{"ipxe": 1}.Below("snponly.efi", read("")))
	require.Empty(t, known.Below("grubx64.efi", read(shim+"grub,5,F,grub,2,u\n")))

	set := Minimum{"shim": 5, "grub": 0, "grub.debian": 5}
	require.Equal(t, []Shortfall{{"grub.debian", 4, 5}}, set.Below("grubx64.efi", read(grub)))
	require.Equal(t, []Shortfall{{"shim", 4, 5}}, set.Below("any.efi", read(shim)))
}

func TestChain(t *testing.T) {
	require.Equal(t, []string{"shimx64.efi", "grubx64.efi"}, Chain("shimx64.efi"))
	require.Equal(t, []string{"snponly-shim.efi", "snponly.efi"}, Chain("snponly-shim.efi"))
	require.Equal(t, []string{"ipxe.efi"}, Chain("ipxe.efi"))
	require.True(t, MustBeSigned("snponly-shim.efi"))
	require.False(t, MustBeSigned("snponly.efi"), "it is also started without Secure Boot")
}

func TestReadDir(t *testing.T) {
	dir := t.TempDir()
	_, err := ReadDir(filepath.Join(dir, "none"))
	require.Error(t, err)
	for name, b := range map[string][]byte{
		"shimx64.efi": fakeloader.Program(shim, true), "bad.efi": append([]byte("MZ"), make([]byte, 100)...), "undionly.kpxe": []byte("x"), "text.efi": []byte("x"),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), b, 0o600))
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "folder.efi"), 0o700))
	files, err := ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 3)
	require.Equal(t, "bad.efi", files[0].Name)
	require.ErrorContains(t, files[0].Err, "reading the headers")
	require.Equal(t, "shimx64.efi", files[1].Name)
	require.Len(t, files[1].Program.Components, 2)
	require.ErrorIs(t, files[2].Err, ErrNotUEFI)
}

// FuzzSBAT: no file makes Read panic or return a component that it would refuse (security S36).
func FuzzSBAT(f *testing.F) {
	for _, text := range []string{shim, grub, "", format + "shim,0,a,b,c,d\n"} {
		f.Add(fakeloader.Program(text, true))
	}
	f.Add([]byte("MZ"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Read(bytes.NewReader(b))
		if err != nil && len(p.Components) > 0 {
			t.Errorf("components %v along with the error %v", p.Components, err)
		}
		for _, c := range p.Components {
			if !validName(c.Name) || c.Generation < 1 || c.Generation > 65535 {
				t.Errorf("component %+v", c)
			}
		}
		if text := p.String(); text != plaintext.ASCII(text, len(text)) {
			t.Errorf("text %q", text)
		}
		Known().Below("shimx64.efi", p)
	})
}
