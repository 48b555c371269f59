package action

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// S23: each repository that names a native action, wherever it is mirrored, and names that only look like one.
func TestImagesNameActionsByRepositoryPath(t *testing.T) {
	for image, want := range map[string]string{
		"quay.io/tinkerbell/actions/image2disk:latest":                                   Image2Disk,
		"quay.io/tinkerbell-actions/writefile:v1.0.0":                                    WriteFile,
		"public.ecr.aws/eks-anywhere/tinkerbell/hub/image2disk:6c0f0d43-eks-a-15":        Image2Disk,
		"public.ecr.aws/eks-anywhere/tinkerbell/hub/reboot@sha256:00":                    Reboot,
		"public.ecr.aws/eks-anywhere/tinkerbell/actions/writefile:1":                     WriteFile,
		"mirror.example.org:5000/site/eks-anywhere/tinkerbell/hub/writefile:1@sha256:00": WriteFile,
		"127.0.0.1/embedded/kexec":                                                       Kexec,
		"ghcr.io/jacobweinstock/waitdaemon:0.2.1":                                        WaitDaemon,
		"mirror.example.org/site/jacobweinstock/waitdaemon:latest":                       WaitDaemon,
		"quay.io/tinkerbell/actions/waitdaemon":                                          WaitDaemon,
		"disk-wipe:v1":                                                                   Wipe,
		"osie-installer":                                                                 Image2Disk,
		"localhost/image2disk":                                                           Image2Disk,

		"ghcr.io/jacobweinstock/kexec":                "",
		"xjacobweinstock/waitdaemon":                  "",
		"jacobweinstock/waitdaemon/more":              "",
		"example.org/other/image2disk":                "",
		"quay.io/xtinkerbell/actions/image2disk":      "",
		"quay.io/tinkerbell/actions/my/image2disk":    "",
		"quay.io/tinkerbell/actions/image2disk2":      "",
		"eks-anywhere/tinkerbell/other/image2disk:v1": "",
		"unembedded/kexec":                            "",
		"":                                            "",
	} {
		got, ok := Native(image)
		require.Equal(t, want, got, image)
		require.Equal(t, want != "", ok, image)
		require.Equal(t, want != "", Rule(image) != "", image)
	}
}

// What waitdaemon may start is what leaves the agent without it.
func TestWaitDaemonStartsWhatLeaves(t *testing.T) {
	for _, name := range Natives() {
		err := Check(WaitDaemon, map[string]string{InnerImageVariable: "quay.io/tinkerbell/actions/" + name + ":v1"})
		if Leaves(name) && name != WaitDaemon {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, "want an action that leaves the agent: one of kexec, poweroff, reboot", name)
		}
	}
}
