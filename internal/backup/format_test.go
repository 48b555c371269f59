package backup

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/internal/backup/dbcopy"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/stretchr/testify/require"
)

var siteKey = []byte("the key of the site, of 32 bytes")

// archive returns one of small parts, and what it describes.
func archive(t *testing.T) ([]byte, Manifest) {
	t.Helper()
	tables := dbcopy.Content{"machine": {Rows: 2, SHA256: "aa"}}
	m := Manifest{
		Format:  Format,
		ID:      "b1",
		Created: time.Unix(1_800_000_000, 0).UTC(),
		Version: "test",
		Inventory: dbcopy.Database{
			Schema:  1,
			Cluster: "c1",
			Tables:  tables,
		},
		Temporal: &dbcopy.Database{Schema: 1101, Cluster: "c1", Tables: tables},
		Images:   []Image{},
	}
	paths := map[string]string{}
	for name, text := range map[string]string{TemporalName: "temporal", InventoryName: "inventory", ImagePrefix + "debian.zst": "image"} {
		paths[name] = filepath.Join(t.TempDir(), "part")
		if err := os.WriteFile(paths[name], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{TemporalName, InventoryName, ImagePrefix + "debian.zst"} {
		p, err := Describe(name, paths[name])
		if err != nil {
			t.Fatal(err)
		}
		m.Parts = append(m.Parts, p)
	}
	var b bytes.Buffer
	if err := Write(&b, m, paths, siteKey); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), m
}

func read(b []byte) (Manifest, map[string]string, error) {
	parts := map[string]string{}
	m, _, err := Read(bytes.NewReader(b), func(_ Manifest, p Part, r io.Reader) error {
		text, err := io.ReadAll(r)
		parts[p.Name] = string(text)
		return err
	})
	return m, parts, err
}

func TestReadArchiveThatWasWritten(t *testing.T) {
	t.Parallel()
	b, want := archive(t)
	m, parts, err := read(b)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(m, want) {
		t.Errorf("read %+v, wrote %+v", m, want)
	}
	if parts[TemporalName] != "temporal" || parts[InventoryName] != "inventory" || parts[ImagePrefix+"debian.zst"] != "image" {
		t.Errorf("parts: %v", parts)
	}
	_, seal, err := Read(bytes.NewReader(b), nil)
	if err != nil {
		t.Errorf("without anybody who wants the parts: %v", err)
	}
	if !seal.MadeWith([][]byte{siteKey}) {
		t.Error("the site does not know its own backup")
	}
}

// TestOnlyTheSiteSeals (S58): correct digests do not replace the key.
func TestOnlyTheSiteSeals(t *testing.T) {
	t.Parallel()
	_, m := archive(t)
	paths := map[string]string{}
	for i, p := range m.Parts {
		file := filepath.Join(t.TempDir(), "part")
		if err := os.WriteFile(file, []byte("swapped"), 0o600); err != nil {
			t.Fatal(err)
		}
		part, err := Describe(p.Name, file)
		if err != nil {
			t.Fatal(err)
		}
		m.Parts[i], paths[p.Name] = part, file
	}
	for name, key := range map[string][]byte{"no key": nil, "another key": []byte("the key of another, of 32 bytes!")} {
		var b bytes.Buffer
		if err := Write(&b, m, paths, key); err != nil {
			t.Fatal(err)
		}
		_, seal, err := Read(&b, nil)
		if err != nil {
			t.Fatal(err)
		}
		if seal.MadeWith([][]byte{siteKey}) {
			t.Errorf("%s: a swapped archive passes for the site's", name)
		}
		if seal.MadeWith(nil) {
			t.Errorf("%s: no key proves everything", name)
		}
	}
}

// TestS58TheSealIsOfOneManifest: the seal of another backup of the site does not prove this one, not even with the digest of this one.
func TestS58TheSealIsOfOneManifest(t *testing.T) {
	t.Parallel()
	one, other := sealOf([]byte("one"), siteKey), sealOf([]byte("other"), siteKey)
	other.SHA256 = one.SHA256
	if !one.MadeWith([][]byte{siteKey}) || other.MadeWith([][]byte{siteKey}) {
		t.Error("a seal is not of its manifest")
	}
}

// TestDamage (S58) changes every byte and cuts at every length: what is not refused
// reads as it was written (there is padding in a tar file).
func TestDamage(t *testing.T) {
	t.Parallel()
	b, _ := archive(t)
	want, wantParts, err := read(b)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	try := func(what string, at int, spoilt []byte) {
		m, parts, err := read(spoilt)
		if err != nil {
			refused++
			if !errors.Is(err, inventory.ErrInvalid) {
				t.Errorf("%s at %d: %v", what, at, err)
			}
			return
		}
		if !reflect.DeepEqual(m, want) || !reflect.DeepEqual(parts, wantParts) {
			t.Errorf("%s at %d: read as another one", what, at)
		}
	}
	for i := range b {
		spoilt := bytes.Clone(b)
		spoilt[i] ^= 0x01
		try("flip", i, spoilt)
		if i < len(b)-1024 { // the end of a tar file is empty
			try("cut", i, b[:i])
		}
	}
	if refused < len(b) {
		t.Errorf("%d of %d spoilt archives were refused", refused, 2*len(b))
	}
}

func TestUnknownArchivesAreRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Manifest){
		"newer format":  func(m *Manifest) { m.Format = Format + 1 },
		"older format":  func(m *Manifest) { m.Format = Format - 1 },
		"no id":         func(m *Manifest) { m.ID = "" },
		"outside":       func(m *Manifest) { m.Parts[2].Name = ImagePrefix + "../../etc/passwd" },
		"image outside": func(m *Manifest) { m.Images = []Image{{Name: "x", File: "../../etc/passwd"}} },
		"strange":       func(m *Manifest) { m.Parts[2].Name = "run-me.sh" },
		"twice":         func(m *Manifest) { m.Parts[1] = m.Parts[0] },
		"no inventory":  func(m *Manifest) { m.Parts = m.Parts[:1] },
		"no keys":       func(m *Manifest) { m.Key = &Wrap{} },
	} {
		b, m := archive(t)
		file := filepath.Join(t.TempDir(), "part")
		if err := os.WriteFile(file, []byte("temporal"), 0o600); err != nil {
			t.Fatal(err)
		}
		change(&m)
		paths := map[string]string{}
		for i := range m.Parts {
			p, err := Describe(m.Parts[i].Name, file)
			if err != nil {
				t.Fatal(err)
			}
			m.Parts[i], paths[p.Name] = p, file
		}
		var w bytes.Buffer
		if err := Write(&w, m, paths, siteKey); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Read(&w, nil); !errors.Is(err, inventory.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		_ = b
	}
}

func TestPartThatChangesIsAnError(t *testing.T) {
	t.Parallel()
	_, m := archive(t)
	file := filepath.Join(t.TempDir(), "part")
	for _, text := range []string{"temporaL", "temp", "temporal and more"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		m.Parts = m.Parts[:1]
		err := Write(io.Discard, m, map[string]string{TemporalName: file}, siteKey)
		if text == "temporal and more" {
			continue // what was described is still its beginning
		}
		if err == nil {
			t.Errorf("%q passed for what was described", text)
		}
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	_, m := archive(t)
	other := dbcopy.Database{Cluster: "c1", Tables: dbcopy.Content{"machine": {Rows: 1, SHA256: "bb"}}}
	for name, x := range map[string]struct {
		inv, temporal dbcopy.Copy
		says          string
	}{
		"whole":           {dbcopy.Copy{ID: "b1", Database: m.Inventory}, dbcopy.Copy{ID: "b1", Database: *m.Temporal}, ""},
		"mixed inventory": {dbcopy.Copy{ID: "b0", Database: m.Inventory}, dbcopy.Copy{ID: "b1", Database: *m.Temporal}, "mixes two"},
		"mixed Temporal":  {dbcopy.Copy{ID: "b1", Database: m.Inventory}, dbcopy.Copy{ID: "b2", Database: *m.Temporal}, "mixes two"},
		"unstamped":       {dbcopy.Copy{ID: "", Database: m.Inventory}, dbcopy.Copy{ID: "b1", Database: *m.Temporal}, "mixes two"},
		"other rows":      {dbcopy.Copy{ID: "b1", Database: other}, dbcopy.Copy{ID: "b1", Database: *m.Temporal}, "1 rows"},
		"other cluster":   {dbcopy.Copy{ID: "b1", Database: dbcopy.Database{Cluster: "c2", Tables: m.Inventory.Tables}}, dbcopy.Copy{ID: "b1", Database: *m.Temporal}, "c2"},
	} {
		err := m.Judge(x.inv, &x.temporal)
		if x.says == "" && err != nil || x.says != "" && (!errors.Is(err, inventory.ErrInvalid) || !strings.Contains(err.Error(), x.says)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	files := map[string][]byte{"keys.json": []byte("secret"), "token": {0, 255}}
	pass := inventory.NewSecret("correct horse battery")
	w, sealed, err := Wrapped(pass, "b1", files)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(sealed, []byte("secret")) {
		t.Error("the keys can be read")
	}
	got, err := w.Unwrap(pass, "b1", sealed)
	if err != nil || !reflect.DeepEqual(got, files) {
		t.Errorf("unwrapped %v, %v", got, err)
	}
	if _, err := w.Unwrap(inventory.NewSecret("correct horse batterx"), "b1", sealed); !errors.Is(err, ErrPassphrase) {
		t.Errorf("a wrong passphrase: %v", err)
	}
	if _, err := w.Unwrap(pass, "b2", sealed); !errors.Is(err, ErrPassphrase) {
		t.Errorf("another backup's keys: %v", err)
	}
	if _, _, err := Wrapped(inventory.NewSecret("short"), "b1", files); !errors.Is(err, inventory.ErrInvalid) {
		t.Errorf("a short passphrase: %v", err)
	}
}

// TestS58GreedyKeysAreRefused: an archive whose keys ask for more than 256 MiB, four passes or four threads is refused when its
// manifest is read, before a key is derived (security S58).
func TestS58GreedyKeysAreRefused(t *testing.T) {
	pass := inventory.NewSecret("correct horse battery")
	w, sealed, err := Wrapped(pass, "b1", map[string][]byte{"keys.json": []byte("secret")})
	require.NoError(t, err)
	for name, change := range map[string]func(w *Wrap){
		"memory":  func(w *Wrap) { w.MemoryKiB = maxMemoryKiB + 1 },
		"time":    func(w *Wrap) { w.Time = maxTime + 1 },
		"threads": func(w *Wrap) { w.Threads = maxThreads + 1 },
	} {
		greedy := w
		change(&greedy)
		_, err := greedy.Unwrap(pass, "b1", sealed)
		require.ErrorIs(t, err, inventory.ErrInvalid, name)
		require.ErrorContains(t, err, "at most 256 MiB, 4 and 4 are allowed", name)
		text, err := json.Marshal(Manifest{Format: Format, ID: "b1", Key: &greedy})
		require.NoError(t, err)
		_, err = parse(text)
		require.ErrorContains(t, err, "at most 256 MiB, 4 and 4 are allowed", name)
	}
	largest := w
	largest.MemoryKiB, largest.Time, largest.Threads = maxMemoryKiB, maxTime, maxThreads
	_, err = largest.Unwrap(pass, "b1", sealed)
	require.ErrorIs(t, err, ErrPassphrase, "other parameters make another key")
}
