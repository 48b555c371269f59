package cli

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/inventory"
)

// A labFile is a lab file on this host, with the content of the files that it names.
type labFile struct {
	path     string
	bundle   inventory.GenesisBundle
	lab      genesis.Lab
	problems inventory.Problems // found while reading
}

// readLab reads a lab file and the files that it names. If their content has problems, it stores the problems in the
// result instead of returning an error, so that they can be reported together with those that the server finds.
func readLab(c *Call, file string) (labFile, error) {
	f := labFile{path: file}
	var err error
	f.bundle, f.lab, err = genesis.Bundle(filepath.Base(file), func(name string) ([]byte, error) {
		return os.ReadFile(f.resolve(name))
	}, c.Systems)

	switch {
	case errors.As(err, &f.problems):
		return f, nil
	case errors.Is(err, fs.ErrNotExist):
		return f, UsageError("%v", err)
	}

	return f, err
}

// resolve returns the path of a file that the lab file names. It takes a relative name as relative to the lab file's
// directory.
func (f labFile) resolve(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(f.path), filepath.FromSlash(name))
}

// withPaths returns ps with file names that are relative to the working directory, and not to the lab file's
// directory.
func (f labFile) withPaths(ps inventory.Problems) inventory.Problems {
	out := slices.Clone(ps)
	for i, p := range out {
		if p.File != "" {
			out[i].File = filepath.Join(filepath.Dir(f.path), p.File)
		}
	}
	return out
}

// hashImage returns the SHA-256 of the file of an image, in hex, and shows the progress.
func (f labFile) hashImage(c *Call, i genesis.Image) (string, error) {
	file, err := os.Open(f.resolve(i.File))
	if err != nil {
		return "", err
	}
	defer file.Close()
	return hashFile(c, file)
}

// checkImages compares the images of the lab with the server's images and with the local files. It
// returns the images that the server lacks, and the problems that it finds.
func (f labFile) checkImages(c *Call) (lacking []genesis.Image, ps inventory.Problems, err error) {
	a, err := getAll[inventory.Image](c, client.Path("images"))
	if err != nil {
		return nil, nil, err
	}

	stored := inventory.ImagesByName(a.Value.Items)
	ps = f.lab.CheckImages(stored, func(i genesis.Image) (string, error) { return f.hashImage(c, i) })
	for _, i := range f.lab.Images {
		if !stored[i.Name].HasDigest(i.SHA256) {
			lacking = append(lacking, i)
		}
	}

	return lacking, ps, c.Context().Err()
}

// checkLab checks the lab here and on the server, and stores nothing. It returns the plan and the images that the server
// lacks. If the lab is invalid, the error is one inventory.Problems with the problems that were found here and on the
// server. If the lab is valid, problems that prevent a start now are in the plan.
func (f labFile) checkLab(c *Call, replace bool) (plan client.Answer[genesis.Plan], lacking []genesis.Image, err error) {
	lacking, ps, err := f.checkImages(c)
	local := f.lab.Together(f.problems, ps)
	if err == nil && (len(local) == 0 || f.bundle.Check() == nil) { // an invalid bundle cannot be sent
		plan, err = f.send(c, replace, true)
	}

	found := plan.Value.Problems
	var refused *client.Error
	if errors.As(err, &refused) {
		found = refused.Problems
	}

	found = withoutMissingImages(found)
	switch {
	case c.Context().Err() != nil:
		return plan, nil, c.Context().Err()
	case len(local) > 0 || err != nil && len(found) > 0:
		if err != nil && len(found) == 0 {
			c.Note("the server did not check the lab: %v", err)
		}
		return plan, nil, f.withPaths(f.lab.Together(local, found))
	case err != nil:
		return plan, nil, err
	}

	plan.Value.Problems, plan.Value.Warnings = f.withPaths(found), f.withPaths(plan.Value.Warnings)
	return plan, lacking, nil
}

// withoutMissingImages returns ps without the problems about images that are missing on the server, because "genesis
// start" sends missing images.
func withoutMissingImages(ps inventory.Problems) inventory.Problems {
	out := inventory.Problems{}
	for _, p := range ps {
		if !strings.HasPrefix(p.Field, "images[") || !strings.HasSuffix(p.Field, "].name") {
			out = append(out, p)
		}
	}
	return out
}

// send sends the lab to the server, which checks it and, unless only is true, stores it.
func (f labFile) send(c *Call, replace, only bool) (client.Answer[genesis.Plan], error) {
	body := struct {
		File    string            `json:"file"`
		Files   map[string]string `json:"files"`
		Replace bool              `json:"replace,omitempty"`
		Only    bool              `json:"only,omitempty"`
	}{f.bundle.File, map[string]string{}, replace, only}
	for name, text := range f.bundle.Files {
		body.Files[name] = text.Reveal()
	}

	return ask[genesis.Plan](c, "PUT", client.Path("genesis", f.bundle.Name), body)
}

// sendImage uploads an image, or makes the server fetch it if the lab gives a URL.
func (f labFile) sendImage(c *Call, i genesis.Image) error {
	u := upload{name: i.Name, sha256: i.SHA256, replace: true} // the operator has already confirmed the start
	if slices.ContainsFunc(f.lab.Machines, func(m genesis.Machine) bool { return isInstallerImage(m, i.Name) }) {
		u.use = inventory.UseInstaller
	}
	if i.URL != "" {
		_, err := fetchImage(c, u, i.URL)
		return err
	}

	file := f.resolve(i.File)
	c.Note("image %s: sending %s to the server", i.Name, file)
	_, err := uploadImage(c, u, file)
	return err
}

// isInstallerImage reports whether the installer of m boots or fetches the image: the hardware map, a label or the user data
// of m names the image, as Harvester's user data names its ISO. It returns false for the image that m itself gets.
func isInstallerImage(m genesis.Machine, image string) bool {
	names := func(values map[string]string) bool {
		return slices.Contains(slices.Collect(maps.Values(values)), image)
	}
	return m.Image != image &&
		(names(m.HardwareMap) || names(m.Labels) || inventory.NamesImage(m.UserData.Reveal(), image))
}
