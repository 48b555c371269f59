package api

import (
	"fmt"
	"os"
	"syscall"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/host/diskreserve"
	"github.com/ingotmetal/ingot/internal/httpapi"
)

// SpaceConfig configures which directories need free space, and how much.
type SpaceConfig struct {
	// DataDir is the directory of the databases. If it is "", its space is not checked.
	DataDir string
	// MinFree is the number of bytes that must stay free; 0 means 1 GiB. If less is free in DataDir, new runs and
	// uploads are refused; if less is free in the image directory, only uploads are refused.
	MinFree int64
	// Reserve returns the state of the reserve, a file that keeps space in DataDir for open runs; nil means that there
	// is no reserve.
	Reserve func() diskreserve.State
}

type space struct {
	SpaceConfig
	imageDir string
}

func newSpace(c SpaceConfig, imageDir string) *space {
	if c.MinFree == 0 {
		c.MinFree = 1 << 30
	}
	return &space{c, imageDir}
}

// look returns the free space of the file system that contains dir, and the device number of that file system.
func (s *space) look(dir string) (st apitypes.SpaceStatus, device uint64, err error) {
	free, err := diskreserve.Free(dir)
	if err != nil {
		return st, 0, err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return st, 0, fmt.Errorf("looking for the file system of %q: %w", dir, err)
	}
	return apitypes.SpaceStatus{Directory: dir, FreeBytes: free, MinFreeBytes: s.MinFree}, info.Sys().(*syscall.Stat_t).Dev, nil
}

// disks returns the free space of the disk with DataDir, and then of the disk with the image directory. If both
// directories are on the same disk, it returns only one element.
func (s *space) disks() ([]apitypes.SpaceStatus, error) {
	out := []apitypes.SpaceStatus{}
	var data uint64
	if s.DataDir != "" {
		st, device, err := s.look(s.DataDir)
		if err != nil {
			return out, err
		}
		data = device
		if s.Reserve != nil {
			if r := s.Reserve(); r.Size > 0 {
				st.Reserve = &apitypes.ReserveStatus{SizeBytes: r.Size, Held: r.Held}
				st.FreeBytes -= r.Missing()
			}
		}
		out = append(out, st)
	}
	if s.imageDir != "" {
		st, device, err := s.look(s.imageDir)
		if err != nil {
			return out, err
		}
		if len(out) == 0 || device != data {
			out = append(out, st)
		}
	}
	for i := range out {
		judgeSpace(&out[i])
	}

	return out, nil
}

// judgeSpace sets st.Low. If space is low or the reserve is in use, it also sets a message that tells the operator what
// to do.
func judgeSpace(st *apitypes.SpaceStatus) {
	st.FreeBytes = max(st.FreeBytes, 0)
	st.Low = st.FreeBytes < st.MinFreeBytes
	const refused = "new runs and uploads are refused; remove what is not needed (ingot image prune), or make the disk bigger"
	inUse := st.Reserve != nil && !st.Reserve.Held

	switch {
	case st.Low && inUse:
		st.Message = "the disk was full, so the reserved space is in use; " + refused
	case st.Low:
		st.Message = refused
	case inUse:
		st.Message = "the reserved space is in use; the server reserves it again when there is room"
	}
}

// checkData returns an error, so that a new run is refused, if the disk with the databases has less free space than
// MinFree.
func (s *space) checkData() error {
	all, err := s.disks()
	if err != nil || len(all) == 0 || s.DataDir == "" {
		return err
	}
	return refuseLow(all[0])
}

// refuseLow returns an error that tells the operator what to do if st is low, otherwise nil.
func refuseLow(st apitypes.SpaceStatus) error {
	if !st.Low {
		return nil
	}
	return hint(fmt.Errorf("%d MiB are free in %s, but %d MiB must stay free for work under way: "+
		"remove images that nothing uses (ingot image prune), or make the disk bigger: %w",
		st.FreeBytes>>20, st.Directory, st.MinFreeBytes>>20, httpapi.ErrNoSpace), "ingot image prune")
}

// spare returns how many bytes may still be written to the image directory. It returns an error if any disk is low on
// space.
func (s *space) spare() (int64, error) {
	all, err := s.disks()
	if err != nil || len(all) == 0 {
		return 1 << 62, err
	}
	for _, st := range all {
		if err := refuseLow(st); err != nil {
			return 0, err
		}
	}
	images := all[len(all)-1]

	return images.FreeBytes - images.MinFreeBytes, nil
}
