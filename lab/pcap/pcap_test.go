package pcap

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const captures = "../../bootsvc/testdata/captures/"

func TestRead(t *testing.T) {
	packets, err := Read(captures+"relay82-vlan30-uefi.pcap", UDP, 69)
	require.NoError(t, err)
	require.Len(t, packets, 3)
	p := packets[1]
	require.Equal(t, "10.10.30.12:1308 10.10.20.2:69", p.Src.String()+" "+p.Dst.String())
	require.Equal(t, "\x00\x01snponly.efi\x00octet\x00blksize\x001468\x00windowsize\x004\x00", string(p.Payload))

	_, err = Read(captures+"none.pcap", UDP)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestRequests(t *testing.T) {
	requests, err := Requests(captures + "*-http-x64-*.pcap")
	require.NoError(t, err)
	require.Len(t, requests, 7)
	require.Equal(t, "HEAD /snponly.efi", requests[0].Method+" "+requests[0].URL.Path)
}

func FuzzRead(f *testing.F) {
	whole, err := os.ReadFile(captures + "uefi-http-x64-chain-ipxe2.0.pcap")
	require.NoError(f, err)
	f.Add(whole[24:])
	f.Add(append(whole[24:40:40], bytes.Repeat([]byte{8, 0, 0x4f, 6}, 40)...))
	path := filepath.Join(f.TempDir(), "a.pcap")
	f.Fuzz(func(t *testing.T, b []byte) {
		require.NoError(t, os.WriteFile(path, append(whole[:24:24], b...), 0o600))
		for _, protocol := range []byte{TCP, UDP} {
			packets, err := Read(path, protocol)
			require.NoError(t, err)
			for _, p := range packets {
				require.NotEmpty(t, p.Payload)
			}
		}
	})
}
