package action

import (
	"strings"
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

// S23: in a public registry only the publishers' repositories hold native actions. The image of another there is refused with
// that reason, whatever its host, port, tag and digest look like; any other registry is a mirror.
func TestImagesOfOthersAreNoActions(t *testing.T) {
	for _, image := range []string{
		"docker.io/acme/tinkerbell-actions/rootio", "acme/tinkerbell-actions/rootio", "acme/tinkerbell-actions/rootio:v1",
		"docker.io/tinkerbell-actions/rootio", "index.docker.io/acme/tinkerbell/actions/cexec", "registry-1.docker.io/acme/embedded/kexec",
		"registry.hub.docker.com/acme/tinkerbell-actions/rootio", "DOCKER.IO/acme/tinkerbell-actions/rootio",
		"docker.io.:443/acme/tinkerbell-actions/rootio", "docker.io:443/acme/tinkerbell-actions/rootio:v1@sha256:00",
		"quay.io/acme/tinkerbell/actions/archive2disk:latest", "Quay.io:443/acme/tinkerbell-actions/archive2disk", "quay.io/image2disk",
		"docker.io/disk-wipe:v1", "ghcr.io/acme/tinkerbell/actions/oci2disk", "ghcr.io/acme/jacobweinstock/waitdaemon:0.2.1",
		"quay.io/jacobweinstock/waitdaemon", "ghcr.io/eks-anywhere/tinkerbell/hub/writefile", "public.ecr.aws/tinkerbell/actions/writefile",
		"public.ecr.aws/x1y2/eks-anywhere/tinkerbell/hub/writefile@sha256:00", "quay.io/embedded/kexec", "registry.k8s.io/tinkerbell-actions/reboot",
		"eu.gcr.io/acme/tinkerbell-actions/reboot", "europe-docker.pkg.dev/acme/tinkerbell-actions/reboot", "mcr.microsoft.com/tinkerbell/actions/wipe",
		"registry.gitlab.com/acme/tinkerbell/actions/growpart",
	} {
		got, ok := Native(image)
		require.False(t, ok, image)
		require.Empty(t, got, image)
		require.Contains(t, Foreign(image), "public", image)
		require.Contains(t, Foreign(image), "not belong to the action's publisher", image)
		require.Empty(t, Rule(image), image)
		require.Empty(t, Mirror(image), image)
		_, err := ParseHandler([]string{image})
		require.ErrorContains(t, err, "not belong to the action's publisher", image)
	}
	require.ErrorContains(t, Check(WaitDaemon, map[string]string{InnerImageVariable: "docker.io/acme/tinkerbell-actions/reboot"}),
		"in the public registry docker.io, acme/tinkerbell-actions/ does not belong to the action's publisher; write only reboot")

	for image, host := range map[string]string{
		"registry.example.org:5000/site/tinkerbell-actions/rootio:v1@sha256:00": "registry.example.org",
		"quay.io.example.org/acme/tinkerbell-actions/rootio":                    "quay.io.example.org",
		"notdocker.io/acme/tinkerbell-actions/rootio":                           "notdocker.io",
		"127.0.0.1/embedded/kexec":                                              "",
		"127.0.0.1/site/embedded/kexec":                                         "127.0.0.1",
		"127.0.0.1/tinkerbell-actions/rootio":                                   "127.0.0.1",
		"[fd00::1]:5000/tinkerbell-actions/rootio":                              "[fd00::1]",
		"localhost/image2disk":                                                  "localhost",
		"quay.io/tinkerbell-actions/rootio":                                     "",
		"QUAY.IO:443/tinkerbell/actions/rootio":                                 "",
		"ghcr.io/tinkerbell/actions/rootio":                                     "",
		"tinkerbell-actions/rootio":                                             "",
		"jacobweinstock/waitdaemon:latest":                                      "",
		"rootio@sha256:00":                                                      "",
	} {
		_, ok := Native(image)
		require.True(t, ok, image)
		require.Empty(t, Foreign(image), image)
		require.Equal(t, host, Mirror(image), image)
		require.Equal(t, host != "", strings.HasSuffix(Rule(image), host+" counts as a mirror of the publisher's registry"), image)
	}
	for _, image := range []string{"nginx", "docker.io/library/alpine", "https://registry.example.org/tinkerbell-actions/rootio", "docker://rootio"} {
		_, ok := Native(image)
		require.False(t, ok, image)
		require.Empty(t, Foreign(image), image)
		require.Empty(t, Mirror(image), image)
	}
}

// What waitdaemon may start is what leaves the agent without it.
func TestWaitDaemonStartsWhatLeaves(t *testing.T) {
	for _, name := range Natives() {
		err := Check(WaitDaemon, map[string]string{InnerImageVariable: "quay.io/tinkerbell/actions/" + name + ":v1"})
		if Leaves(name) && name != WaitDaemon {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, "must be an action that leaves the agent: one of kexec, poweroff, reboot", name)
		}
	}
}
