package api

import (
	"context"
	"fmt"
	"os"
	"syscall"

	"github.com/ingotmetal/ingot/internal/reserve"
)

// SpaceStatus is the room on one disk.
type SpaceStatus struct {
	Directory string `json:"directory"`
	// FreeBytes is without what the reserve lacks: that is not free for others.
	FreeBytes    int64 `json:"freeBytes"`
	MinFreeBytes int64 `json:"minFreeBytes"`
	// Low: new runs and uploads are refused.
	Low     bool           `json:"low"`
	Reserve *ReserveStatus `json:"reserve,omitempty"`
	Message string         `json:"message,omitempty"` // what to do
}

// ReserveStatus is the space that is kept for DHCP, disarming and runs that are
// under way.
type ReserveStatus struct {
	SizeBytes int64 `json:"sizeBytes"`
	// Held: it is there. It is not when it is in use because the disk was full.
	Held bool `json:"held"`
}

// disk looks at the file system of a directory.
func (s *Server) disk(dir string) (st SpaceStatus, device uint64, err error) {
	free, err := reserve.Free(dir)
	if err != nil {
		return st, 0, err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return st, 0, fmt.Errorf("looking for the file system of %q: %w", dir, err)
	}
	return SpaceStatus{Directory: dir, FreeBytes: free, MinFreeBytes: s.cfg.MinFree}, info.Sys().(*syscall.Stat_t).Dev, nil
}

// spaces looks at the disks on which new work needs room.
func (s *Server) spaces() ([]SpaceStatus, error) {
	out := []SpaceStatus{}
	var data uint64
	if s.cfg.DataDir != "" {
		st, id, err := s.disk(s.cfg.DataDir)
		if err != nil {
			return out, err
		}
		if data = id; s.cfg.Reserve != nil {
			if r := s.cfg.Reserve(); r.Size > 0 {
				st.Reserve = &ReserveStatus{SizeBytes: r.Size, Held: r.Held}
				st.FreeBytes -= r.Missing()
			}
		}
		out = append(out, st)
	}
	if s.cfg.ImageDir != "" {
		st, id, err := s.disk(s.cfg.ImageDir)
		if err != nil {
			return out, err
		}
		if len(out) == 0 || id != data {
			out = append(out, st)
		}
	}
	for i := range out {
		st := &out[i]
		st.FreeBytes = max(st.FreeBytes, 0)
		if st.Low = st.FreeBytes < st.MinFreeBytes; st.Low {
			st.Message = "new runs and uploads are refused; remove what is not needed (ingot image prune), or make the disk bigger"
		}
		if st.Reserve != nil && !st.Reserve.Held {
			st.Message = "the disk was full and the reserve is in use; " + st.Message
			if !st.Low {
				st.Message = "the reserve is in use; it is taken back when there is room"
			}
		}
	}
	return out, nil
}

// room refuses new runs while the site is about to move, and when the databases' disk has less than the minimum of
// free space: DHCP, disarming and reports of runs that are under way need the
// rest.
func (s *Server) room(ctx context.Context) error {
	if err := s.moving(ctx); err != nil {
		return err
	}
	all, err := s.spaces()
	if err != nil || len(all) == 0 || s.cfg.DataDir == "" {
		return err
	}
	return all[0].refusal()
}

// refusal says that there is too little room, and what helps.
func (st SpaceStatus) refusal() error {
	if !st.Low {
		return nil
	}
	return hint{fmt.Errorf("%d MiB are free in %s and %d MiB must stay free for what is under way: remove images that nothing uses (ingot image prune), or make the disk bigger: %w",
		st.FreeBytes>>20, st.Directory, st.MinFreeBytes>>20, errNoSpace), "ingot image prune"}
}

// spare returns how many bytes may still be written to the image directory.
func (s *Server) spare() (int64, error) {
	all, err := s.spaces()
	if err != nil || len(all) == 0 {
		return 1 << 62, err
	}
	for _, st := range all {
		if err := st.refusal(); err != nil {
			return 0, err
		}
	}
	images := all[len(all)-1]
	return images.FreeBytes - images.MinFreeBytes, nil
}
