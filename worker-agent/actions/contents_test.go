package actions

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/worker-agent/disk/filesystest"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
	"github.com/stretchr/testify/require"
)

// The bytes are those of the tool that comes with the kernel: text, zeros, size, sum, magic.
func TestBootConfigFile(t *testing.T) {
	require.Equal(t, "kernel {}\n\x00\x00"+"\x0c\x00\x00\x00"+"\xa3\x03\x00\x00"+"#BOOTCONFIG\n", string(bootConfigFile("kernel {}\n")))
	require.Equal(t, "abc\x00"+"\x04\x00\x00\x00"+"\x26\x01\x00\x00"+"#BOOTCONFIG\n", string(bootConfigFile("abc")))
	require.Zero(t, len(bootConfigFile("abcd"))%4)
}

// writefile with the variables of EKS Anywhere: the first metadata service that answers 200 counts.
func TestWriteFileOfEKSAnywhere(t *testing.T) {
	var asked []string
	hegel := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
		switch r.URL.Path {
		case "/good/2009-04-04/user-data":
			_, _ = w.Write([]byte("geheim = 1"))
		case "/long/2009-04-04/user-data":
			_, _ = w.Write(make([]byte, filesys.MaxText+1))
		default:
			w.WriteHeader(http.StatusMultipleChoices)
		}
	}))
	defer hegel.Close()

	root := t.TempDir()
	part := filesystest.ExtPartition(t, 12, 8192)
	s := newWorker(t)
	disks, disk, _ := disktest.OldDisk(t, 8*blockdev.MiB)
	cfg := s.config()
	cfg.Disks, cfg.Files = disks, &filesystest.FakeFiles{Parts: []filesys.Partition{part}, Dirs: map[string]string{part.Path: root}}
	s.start(cfg)

	env := map[string]string{"DEST_DISK": "/dev/alias12", "DEST_PATH": "/user-data.toml", "FS_TYPE": "ext4"}
	env["HEGEL_URLS"] = hegel.URL + "/bad," + hegel.URL + "/good/," + hegel.URL + "/never"
	res := s.result(s.give(1, action.WriteFile, disk, env))
	require.Equal(t, action.Success, res.State, res.Message)
	require.Equal(t, []string{"/bad/2009-04-04/user-data", "/good/2009-04-04/user-data"}, asked)
	require.NotContains(t, res.Log, "geheim")
	b, err := os.ReadFile(filepath.Join(root, "user-data.toml"))
	require.NoError(t, err)
	require.Equal(t, "geheim = 1", string(b))

	withPassword := strings.Replace(hegel.URL, "http://", "http://user:geheim@", 1)
	env["HEGEL_URLS"] = withPassword + "/bad," + withPassword + "/long"
	res = s.result(s.give(2, action.WriteFile, disk, env))
	require.Equal(t, action.Failed, res.State)
	require.Contains(t, res.Message, "/bad/2009-04-04/user-data: the server answers 300")
	require.Contains(t, res.Message, "longer than")
	require.NotContains(t, res.Message+res.Log, "geheim")

	delete(env, "HEGEL_URLS")
	env["BOOTCONFIG_CONTENTS"], env["DEST_PATH"] = "abc", "/bootconfig.data"
	res = s.result(s.give(3, action.WriteFile, disk, env))
	require.Equal(t, action.Success, res.State, res.Message)
	b, err = os.ReadFile(filepath.Join(root, "bootconfig.data"))
	require.NoError(t, err)
	require.Equal(t, bootConfigFile("abc"), b)

	delete(env, "BOOTCONFIG_CONTENTS")
	env["CONTENTS"], env["DEST_PATH"] = "version = 3\n", "/net.toml"
	env["BOTTLEROCKET_SETTINGS"] = "[settings.dns]\nname-servers = [\"192.0.2.53\"]\n"
	for sequence := 4; sequence < 6; sequence++ { // an action that is repeated appends nothing again
		res = s.result(s.give(sequence, action.WriteFile, disk, env))
		require.Equal(t, action.Success, res.State, res.Message)
		b, err = os.ReadFile(filepath.Join(root, "user-data.toml"))
		require.NoError(t, err)
		require.Equal(t, "geheim = 1\n\n"+env["BOTTLEROCKET_SETTINGS"], string(b))
	}
	b, err = os.ReadFile(filepath.Join(root, "net.toml"))
	require.NoError(t, err)
	require.Equal(t, "version = 3\n", string(b))
	for n, own := range []string{
		"[settings.dns]\r\nname-servers = []\r\n", "[ settings . dns ] # ours\n", "[settings]\n  dns = { name-servers = [] }\n",
		"settings.dns.name-servers = []\n", "[settings]\ndns.name-servers = []\n", "[\"settings\".'dns']\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(root, "user-data.toml"), []byte(own), 0o600))
		res = s.result(s.give(6+n, action.WriteFile, disk, env))
		require.Equal(t, action.Success, res.State, res.Message)
		b, err = os.ReadFile(filepath.Join(root, "user-data.toml"))
		require.NoError(t, err)
		require.Equal(t, own, string(b), "the user data has name servers of its own")
	}
	const secret = "[settings.kubernetes]\nbootstrap-token = 'x'\nstandalone-dns = true"
	require.NoError(t, os.Remove(filepath.Join(root, "user-data.toml")))
	require.NoError(t, os.WriteFile(filepath.Join(root, "user-data.toml"), []byte(secret), 0o600))
	res = s.result(s.give(20, action.WriteFile, disk, env))
	require.Equal(t, action.Success, res.State, res.Message)
	b, err = os.ReadFile(filepath.Join(root, "user-data.toml"))
	require.NoError(t, err)
	require.Equal(t, secret+"\n\n"+env["BOTTLEROCKET_SETTINGS"], string(b))
	info, err := os.Stat(filepath.Join(root, "user-data.toml"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "the file keeps its mode")
}
