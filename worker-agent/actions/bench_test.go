package actions

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/images/diskimage"
	"github.com/ingotmetal/ingot/worker-agent/disk"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/stretchr/testify/require"
)

var bench = flag.Bool("bench", false, "compare image2disk with pipes of curl, a decompressor and dd (make bench-image)")

const (
	benchSize = 256 * blockdev.MiB
	benchRuns = 3
	slowDisk  = 300e6 // bytes a second
)

// TestBenchImage measures image2disk and `curl | decompressor | dd`, in turns: the median of three runs and the ratio of the
// speeds. The disk is a file in memory, as it is ("free") or with 300 MB/s in each direction. "proof" reads the disk back:
// image2disk does, and the pipe is followed by `dd | sha256sum`.
func TestBenchImage(t *testing.T) {
	if !*bench {
		t.Skip("measures: make bench-image")
	}
	dir := t.TempDir() // make bench-image puts it into memory
	benchFiles(t, dir)
	web := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer web.Close()

	fmt.Printf("image of %d MiB, median of %d, MB/s; %d processors\n", benchSize/blockdev.MiB, benchRuns, runtime.GOMAXPROCS(0))
	fmt.Printf("%-22s %8s %8s %8s\n", "", "ingot", "pipe", "ratio")
	for _, c := range []struct {
		file, decompress string
		rate             float64 // of the disk; 0 = as it is
		proof            bool
	}{
		{"raw", "cat", 0, false},
		{"gz", "gzip -dc", 0, false},
		{"zst", "zstd -dc", 0, false},
		{"frames", "zstd -dc", 0, false},
		{"xz", "xz -dc -T1", 0, false},
		{"xz-blocks", "xz -dc -T1", 0, false},
		{"raw", "cat", slowDisk, false},
		{"zst", "zstd -dc", slowDisk, false},
		{"frames", "zstd -dc", slowDisk, false},
		{"raw", "cat", slowDisk, true},
		{"zst", "zstd -dc", slowDisk, true},
		{"frames", "zstd -dc", slowDisk, true},
	} {
		var ours, pipes []float64
		for range benchRuns {
			ours = append(ours, benchAction(t, dir, web.URL+"/"+c.file, c.rate, c.proof))
			pipes = append(pipes, benchPipe(t, dir, web.URL+"/"+c.file, c.decompress, c.rate, c.proof))
		}
		slices.Sort(ours)
		slices.Sort(pipes)
		name := c.file
		if c.rate > 0 {
			name += ", 300 MB/s"
		}
		if c.proof {
			name += ", proof"
		}
		our, pipe := ours[benchRuns/2], pipes[benchRuns/2]
		fmt.Printf("%-22s %8.0f %8.0f %8.2f\n", name, our, pipe, our/pipe)
	}
}

// benchFiles makes the image, of this system's programs and libraries, in each format.
func benchFiles(t *testing.T, dir string) {
	t.Helper()
	disktest.Run(
		t,
		"sh",
		"-c",
		`tar -C /usr -cf - lib bin 2>/dev/null | tail -c +10000000 | head -c "$1" >"$2/raw"`,
		"sh",
		fmt.Sprint(benchSize),
		dir,
	)
	st, err := os.Stat(filepath.Join(dir, "raw"))
	require.NoError(t, err)
	require.EqualValues(t, benchSize, st.Size(), "this system has too few files")
	for file, command := range map[string]string{
		"gz": "gzip -c", "zst": "zstd -qc", "xz": "xz -cT1", "xz-blocks": "xz -cT2 --block-size=24MiB",
	} {
		disktest.Run(t, "sh", "-c", command+` "$1/raw" >"$1/$2"`, "sh", dir, file)
	}

	in, err := os.Open(filepath.Join(dir, "raw"))
	require.NoError(t, err)
	out, err := os.Create(filepath.Join(dir, "frames"))
	require.NoError(t, err)
	w, err := diskimage.NewFrameWriter(out)
	require.NoError(t, err)
	_, err = io.Copy(w, in)
	require.NoError(t, errors.Join(err, w.Close(), out.Close(), in.Close()))
}

var writingSpeed = regexp.MustCompile(`wrote [0-9]+ bytes in [0-9.]+ s \(([0-9.]+) MB/s\)`)

// benchAction returns the speed of image2disk in MB/s: of writing, or with proof of the whole action.
func benchAction(t *testing.T, dir, url string, rate float64, proof bool) float64 {
	t.Helper()
	target := action.Disk{Path: "/dev/sda", Serial: "S1", Size: benchSize + 4*blockdev.MiB}
	file := filepath.Join(dir, "disk")
	disktest.NewFile(t, file, target.Size)
	disks := throttledDisks{disk.FileDisks{{Disk: target, File: file}}, rate}
	begun := time.Now()
	out, log, err := try(t, Machine{Disks: disks}, action.Image2Disk, &target, map[string]string{"IMG_URL": url})
	speed := benchSize / 1e6 / time.Since(begun).Seconds()
	require.NoError(t, err, log)
	require.Equal(t, "ok", out["readback"])
	if !proof {
		found := writingSpeed.FindStringSubmatch(log)
		require.NotNil(t, found, log)
		speed, err = strconv.ParseFloat(found[1], 64)
		require.NoError(t, err)
	}
	require.NoError(t, os.Remove(file))
	return speed
}

// benchPipe does the same with programs. dd writes to a free disk; on a slow one this process does in its place.
func benchPipe(t *testing.T, dir, url, decompress string, rate float64, proof bool) float64 {
	t.Helper()
	file := filepath.Join(dir, "disk")
	disktest.NewFile(t, file, benchSize+4*blockdev.MiB)
	begun := time.Now()
	if rate == 0 {
		disktest.Run(
			t,
			"bash",
			"-c",
			`set -o pipefail; curl -sf "$1" | `+decompress+` | dd of="$2" bs=1M iflag=fullblock conv=notrunc,fdatasync status=none`,
			"bash",
			url,
			file,
		)
	} else {
		disk, err := throttledDisks{
			disk.FileDisks{{Disk: action.Disk{Path: "/dev/sda", Size: benchSize + 4*blockdev.MiB}, File: file}},
			rate,
		}.Open(
			"/dev/sda",
		)
		require.NoError(t, err)
		c := exec.Command("bash", "-c", `set -o pipefail; curl -sf "$1" | `+decompress, "bash", url)
		out, err := c.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		blocks := bufio.NewWriterSize(io.NewOffsetWriter(disk, 0), blockdev.MiB) // as dd bs=1M iflag=fullblock
		n, err := io.Copy(blocks, struct{ io.Reader }{out})
		require.NoError(t, err)
		require.EqualValues(t, benchSize, n)
		require.NoError(t, errors.Join(blocks.Flush(), c.Wait(), disk.Sync()))
		if proof {
			c := exec.Command("sha256sum")
			// Without WriteTo of the two readers, which would read in small pieces.
			c.Stdin = struct{ io.Reader }{bufio.NewReaderSize(struct{ io.Reader }{io.NewSectionReader(disk, 0, benchSize)}, blockdev.MiB)}
			require.NoError(t, c.Run())
		}
		require.NoError(t, disk.Close())
	}
	took := time.Since(begun).Seconds()
	require.NoError(t, os.Remove(file))
	return benchSize / 1e6 / took
}

// throttledDisks are disks that take rate bytes a second; 0 = as fast as they are.
type throttledDisks struct {
	disk.FileDisks
	rate float64
}

func (s throttledDisks) Disks(ctx context.Context) ([]action.Disk, error) {
	return s.FileDisks.Disks(ctx)
}

func (s throttledDisks) Open(path string) (blockdev.Device, error) {
	d, err := s.FileDisks.Open(path)
	if err != nil || s.rate == 0 {
		return d, err
	}
	return &throttledDevice{Device: d, rate: s.rate}, nil
}

// A throttledDevice is busy for the time that each read and write takes, also while no caller waits for it.
type throttledDevice struct {
	blockdev.Device
	rate float64
	free time.Time
}

func (d *throttledDevice) busy(n int) {
	if now := time.Now(); d.free.Before(now) {
		d.free = now
	}
	d.free = d.free.Add(time.Duration(float64(n) / d.rate * 1e9))
	time.Sleep(time.Until(d.free))
}

func (d *throttledDevice) ReadAt(p []byte, off int64) (int, error) {
	d.busy(len(p))
	return d.Device.ReadAt(p, off)
}

func (d *throttledDevice) WriteAt(p []byte, off int64) (int, error) {
	d.busy(len(p))
	return d.Device.WriteAt(p, off)
}
