package inventory

import "time"

// An Image is a file that the image server serves.
type Image struct {
	Name   string `json:"name"`          // path-safe, unique
	File   string `json:"file"`          // path below the image directory
	URL    string `json:"url,omitempty"` // where it came from, or is fetched from by the agent when File is empty
	Size   int64  `json:"size"`          // bytes of the file as served
	SHA256 string `json:"sha256"`        // hex, of the file as served
	// FirstSeen: the digest was computed by this server from its own copy and
	// not declared by anybody (security S18).
	FirstSeen bool      `json:"firstSeen,omitempty"`
	Format    string    `json:"format"`             // raw | gz | zst | xz, by magic bytes
	DiskSize  int64     `json:"diskSize,omitempty"` // bytes when unpacked, if known
	Created   time.Time `json:"created,omitzero"`
}
