package actions

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/worker-agent/fetch"

	"github.com/ingotmetal/ingot/action"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"
)

// oci2disk writes an image as image2disk does. The image is the only layer of a manifest in a registry (OCI distribution
// specification 1.1).
//
//	IMG_URL     the reference: REGISTRY/REPOSITORY@sha256:DIGEST, or :TAG; begins with http:// if the registry has no TLS
//	IMG_SHA256  digest of the layer; needed if IMG_URL has no digest
//	DEST_DISK   the bound disk
//	REGISTRY_USERNAME, REGISTRY_PASSWORD  are sent to the registry only
//
// The manifest is verified by the digest in the reference, and the layer by the digest in the manifest.
func oci2disk(ctx context.Context, t *Task) error {
	want, err := action.SHA256(t.env, "IMG_SHA256")
	if err != nil {
		return err
	}
	l, err := findLayer(ctx, t)
	if err != nil {
		return err
	}
	if want != "" && want != l.digest {
		return fmt.Errorf("verifying %s: the layer's SHA-256 is %s, but the plan has %s", l.shown, l.digest, want)
	}
	return writeFrom(ctx, t, l.digest, func(ctx context.Context) (*fetch.Source, error) { return openLayer(ctx, t, l) })
}

// A layer is a file in a registry.
type layer struct {
	registry *auth.Client
	ref      registry.Reference
	url      string
	shown    string // the reference, for logs and errors
	digest   string // SHA-256, hex digits
}

// findLayer reads the manifest that IMG_URL names, and returns its only layer. After temporary errors it retries until ctx ends.
func findLayer(ctx context.Context, t *Task) (layer, error) {
	image, err := action.OCIImage(t.env)
	if err != nil {
		return layer{}, err
	}
	repo, err := remote.NewRepository(image.Name)
	if err != nil {
		return layer{}, errors.New("invalid IMG_URL; must be a reference to an image in a registry")
	}
	client := &auth.Client{Client: fetch.NewClient(), Cache: auth.NewCache()}
	client.SetUserAgent("ingot-agent")
	if user := t.env[action.RegistryUserVariable]; user != "" {
		client.Credential = auth.StaticCredential(repo.Reference.Host(), auth.Credential{
			Username: user, Password: t.env[action.RegistryPasswordVariable],
		})
	}
	repo.Client, repo.PlainHTTP = client, image.Plain

	for try := (clock.Backoff{Max: t.machine.Backoff}); ; {
		found, err := layerOf(ctx, repo)
		if err == nil {
			scheme := "https"
			if image.Plain {
				scheme = "http"
			}
			return layer{
				registry: client, ref: repo.Reference, shown: image.Name, digest: found.Digest.Encoded(),
				url: fmt.Sprintf("%s://%s/v2/%s/blobs/%s", scheme, repo.Reference.Host(), repo.Reference.Repository, found.Digest),
			}, nil
		}

		var refused *errcode.ErrorResponse
		temporary := errors.As(err, &refused) && (refused.StatusCode >= 500 || refused.StatusCode == http.StatusTooManyRequests)
		if _, sent := errors.AsType[net.Error](err); !temporary && !sent {
			return layer{}, fmt.Errorf("getting the manifest of %s: %w", image.Name, err)
		}
		t.logf("getting the manifest of %s: %v; trying again", image.Name, err)
		if e := try.Pause(ctx); e != nil {
			return layer{}, fmt.Errorf("getting the manifest of %s: %w (%w)", image.Name, err, e)
		}
	}
}

// layerOf returns the only layer of the manifest that the repository's reference names. If the reference names an index, layerOf
// uses the index's manifest for linux/amd64.
func layerOf(ctx context.Context, repo *remote.Repository) (v1.Descriptor, error) {
	name := cmp.Or(repo.Reference.Reference, "latest")
	d, manifest, err := repo.Manifests().FetchReference(ctx, name)
	if err != nil {
		return d, err
	}
	defer manifest.Close()
	text, err := content.ReadAll(manifest, d) // ReadAll verifies size and digest
	if err != nil {
		return d, err
	}

	switch d.MediaType {
	case v1.MediaTypeImageIndex, "application/vnd.docker.distribution.manifest.list.v2+json":
		var index v1.Index
		if err := json.Unmarshal(text, &index); err != nil {
			return d, fmt.Errorf("reading the index: %w", err)
		}
		for _, m := range index.Manifests {
			if p := m.Platform; p != nil && p.OS == "linux" && p.Architecture == "amd64" && m.MediaType != d.MediaType {
				repo.Reference.Reference = m.Digest.String()
				return layerOf(ctx, repo)
			}
		}
		return d, errors.New("the image index has no manifest for linux/amd64")
	}

	var m v1.Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return d, fmt.Errorf("reading the manifest: %w", err)
	}
	if len(m.Layers) != 1 {
		return d, fmt.Errorf("the manifest has %d layers; must have one, the disk image: a container image cannot be written to a disk",
			len(m.Layers))
	}
	if err := m.Layers[0].Digest.Validate(); err != nil || m.Layers[0].Digest.Algorithm() != "sha256" {
		return d, errors.New("the manifest's layer has no valid SHA-256 digest")
	}
	return m.Layers[0], nil
}

// openLayer starts to read a layer.
func openLayer(ctx context.Context, t *Task, l layer) (*fetch.Source, error) {
	ctx = auth.AppendRepositoryScope(ctx, l.ref, auth.ActionPull)
	return t.opener().OpenFile(ctx, fetch.File{URL: l.url, Shown: l.shown, Digested: true, Do: l.registry.Do})
}
