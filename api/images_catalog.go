package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/url"
	"path"
	"slices"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/internal/images/catalog"
	"github.com/ingotmetal/ingot/internal/images/provenance"
	"github.com/ingotmetal/ingot/inventory"
)

// catalog reads the catalog file at each request. So the server need not be restarted after the file has changed.
func (s *images) catalog(context.Context, httpapi.Empty) (catalog.Catalog, error) {
	return catalog.Read(s.Catalog)
}

// fromCatalog returns the request with the URL of the image q.Name in a catalog, and with what proves the file there. f fetches
// the list of digests and the signature.
func (q fetchImage) fromCatalog(ctx context.Context, f fetcher, file string) (fetchImage, error) {
	if q.URL+q.Path+q.SHA256+q.Use != "" || !q.isEmpty() {
		return q, inventory.Invalid("catalog", "leave the other fields out", "the catalog says where its images are and how they are verified")
	}
	c, err := catalog.Read(file)
	if err != nil {
		return q, err
	}
	at := slices.IndexFunc(c.Images, func(i catalog.Image) bool { return i.Name == q.Name })
	if at < 0 {
		return q, hint(inventory.Invalid("name", "", "the catalog has no image %q", q.Name), "ingot image catalog")
	}
	i := c.Images[at]
	q.URL, q.Use, q.SHA256, q.SHA512 = i.URL, i.Use, i.SHA256, i.SHA512

	var signature []byte
	if i.Signature != "" {
		if signature, err = f.readSmall(ctx, i.Signature); err != nil {
			return q, err
		}
	}
	if i.Sums == "" {
		q.Signature, q.PublicKey = string(signature), i.PublicKey
		return q, nil
	}
	list, err := f.readSmall(ctx, i.Sums)
	if err != nil {
		return q, err
	}
	if signature != nil {
		if err := provenance.VerifyMinisign(bytes.NewReader(list), signature, []byte(i.PublicKey)); err != nil {
			return q, err
		}
	}
	from, err := url.Parse(i.URL)
	if err != nil {
		return q, err // never: catalog.Read has parsed it
	}
	sum, err := provenance.FindSum(i.Sums, list, path.Base(from.Path))
	if provenance.IsSHA512(sum) {
		q.SHA512 = sum
	} else {
		q.SHA256 = sum
	}

	return q, err
}

// readSmall fetches a list of digests or a signature, from where images may be fetched.
func (f fetcher) readSmall(ctx context.Context, from string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	shown := action.PublicURL(from)
	u, err := url.Parse(from)
	if err == nil {
		err = f.checkURL(u)
	}
	if err != nil {
		return nil, inventory.Invalid("catalog", "use https, or http from a host in images.fetch_hosts", "%q: %v", shown, err)
	}
	resp, err := f.request(ctx, from, "")
	if err != nil {
		return nil, fmt.Errorf("fetching %q: %w: %w", shown, err, inventory.ErrUnreachable)
	}
	defer resp.Body.Close()
	if u.Scheme == "https" && resp.Request.URL.Scheme != "https" {
		return nil, inventory.Invalid("catalog", "", "%q: a redirect leads from https to http, where the list can be changed on the way", shown)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, provenance.MaxSums+1))
	if err == nil && len(b) > provenance.MaxSums {
		err = inventory.Invalid("catalog", "", "%q has more than %d bytes: it is not a list of digests or a signature", shown, provenance.MaxSums)
	}
	return b, err
}
