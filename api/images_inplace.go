package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// register creates an image from a file of a share. It reads and checks the file like an upload with asIs. Ingot does
// not copy the file, and never changes or deletes it.
func (s *images) register(ctx context.Context, q fetchImage) (inventory.Image, error) {
	none := inventory.Image{}
	u, problems := q.newUpload()
	u.asIs = true
	if q.URL != "" {
		problems.Add("url", "leave out url or path", "must not be given together with path")
	}
	if err := problems.Err(); err != nil {
		return none, err
	}
	if err := s.users.refuseReplacing(ctx, q.Name, u.image.SHA256, q.Replace); err != nil {
		return none, err
	}
	f, err := s.Files.OpenShared(q.Path)
	if errors.Is(err, inventory.ErrInvalid) || errors.Is(err, inventory.ErrNotFound) {
		return none, inventory.Invalid("path", "give an absolute path on the server, inside one of images.shares", "%v", err)
	}
	if err != nil {
		return none, err
	}
	defer f.Close()
	checked, unlock, err := s.lockUpload(q.Name)
	if err != nil {
		return none, err
	}
	defer unlock()

	if !u.proof.isEmpty() {
		if err := u.proof.verifyContent(ctx, f); err != nil {
			return none, err
		}
		if _, err := f.Seek(0, 0); err != nil {
			return none, fmt.Errorf("reading %s: %w", q.Path, err)
		}
	}
	i, err := s.examineFile(ctx, nil, u, f.File, checked)
	if err == nil {
		err = f.Unchanged()
	}
	if err != nil {
		return none, err
	}
	i.File, i.InPlace, i.Created = i.SHA256, f.Place(q.Path), s.now().UTC()
	if err := s.store.PutImage(context.WithoutCancel(ctx), i, httpapi.Actor(ctx)); err != nil {
		return none, fmt.Errorf("storing image %q: %w", i.Name, err)
	}
	s.removeUnusedFiles(ctx) // remove the file of the image that this one has replaced
	return i, nil
}
